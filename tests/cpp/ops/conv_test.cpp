// SPDX-License-Identifier: BSD-3-Clause
#include "ops/conv.h"

#include <ATen/Context.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "aten_algo/list.h"
#include "base/error.h"
#include "ops/recorded_runs.h"
#include "ops/relayout.h"
#include "provider/kernel.h"

namespace torchalgo {
namespace {

constexpr Layout kBlocked = Layout::kNChw16c;

// What a fake row saw.
struct Seen {
  int offers = 0;
  int packs = 0;
  std::vector<std::int64_t> src_sizes, weight_strides;
  bool has_workspace = false;
};

// A 2-D forward row in `layout` without epilogue that computes by ATen.
Algorithm fake_row(Seen& seen, Layout layout, Traits traits = {}) {
  Algorithm row;
  row.name = "cpu.fake";
  row.offer = [&seen, layout, traits](const Problem& problem, const Device&) -> Offer {
    ++seen.offers;
    if (!epilogue_of(problem).empty()) return {{}, "fuses nothing"};
    return {{{"cpu.fake", layout, layout, 64}}, {}, {traits}};
  };
  row.prepare = [&seen](const Problem& problem, const Primitive& primitive,
                        const Device&) -> Kernel {
    Kernel kernel = {.problem = problem, .primitive = primitive};
    kernel.pack = [&seen](const Weights& weights) -> Packed {
      ++seen.packs;
      seen.weight_strides = weights[0].weights.strides().vec();
      return {{weights[0].weights, {}}};
    };
    kernel.run = [&seen, primitive, conv = std::get<ConvProblem>(problem)](const KernelArgs& args) {
      seen.src_sizes = args.src[0].sizes().vec();
      seen.has_workspace = args.workspace != nullptr;
      const at::Tensor src = to_nchw(args.src[0], primitive.src, conv.c);
      const at::Tensor dst = at::conv2d(src, args.packed[0].weights, {},
                                        {conv.stride_h, conv.stride_w}, {conv.pad_h, conv.pad_w});
      return args.dst.copy_(from_nchw(dst, primitive.dst));
    };
    return kernel;
  };
  return row;
}

struct ConvTest : testing::Test {
  ConvTest() {
    at::manual_seed(1);
    rows = aten_algorithms();
    rows.push_back(fake_row(seen, kBlocked));
  }
  ~ConvTest() override {
    set_context_choices({});
    set_flag_choices({});
    set_planned_choices({});
    set_conflict_policy(ConflictPolicy::kError);
    set_recording(false);
    set_strict(false);
    reset_recorded_runs();
    reset_fallbacks();
    at::globalContext().setDeterministicCuDNN(false);
  }

  ConvCall call(at::MemoryFormat format = at::MemoryFormat::Contiguous) {
    ConvCall call;
    call.src = at::rand({2, 5, 9, 7}).contiguous(format);
    call.weights = at::rand({3, 5, 3, 3}).contiguous(format);
    call.result_sizes = {2, 3, 9, 7};
    call.result_format = format;
    call.stride = one;
    call.padding = one;
    call.dilation = one;
    return call;
  }

  std::vector<std::int64_t> one = {1, 1};
  Seen seen;
  Algorithms rows;
};

TEST_F(ConvTest, RunsARowInOtherLayoutsWithItsEpilogueAndWorkspace) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    ConvCall fake = call(format);
    fake.bias = at::rand({3});
    const auto result = run_convolution(fake, "cpu.fake", rows);
    ASSERT_TRUE(result);
    EXPECT_TRUE(result->allclose(at::conv2d(fake.src, fake.weights, fake.bias, 1, 1), 1e-5, 1e-5));
    EXPECT_TRUE(result->is_contiguous(format));
    EXPECT_EQ(seen.src_sizes, (std::vector<std::int64_t>{2, 1, 9, 7, 16}));
    EXPECT_EQ(seen.weight_strides, (std::vector<std::int64_t>{45, 9, 3, 1}));
    EXPECT_TRUE(seen.has_workspace);
  }
}

TEST_F(ConvTest, DecidesOnceAndPacksLiveWeightsInEachCall) {
  ConvCall fake = call();
  for (int i = 0; i < 3; ++i) {
    fake.weights = at::rand({3, 5, 3, 3});
    const auto result = run_convolution(fake, "cpu.fake", rows);
    EXPECT_TRUE(result->allclose(at::conv2d(fake.src, fake.weights, {}, 1, 1), 1e-5, 1e-5));
  }
  EXPECT_EQ(seen.offers, 1);
  EXPECT_EQ(seen.packs, 3);
  set_conflict_policy(ConflictPolicy::kHonour);  // any change of a setting: decided anew
  static_cast<void>(run_convolution(fake, "cpu.fake", rows));
  EXPECT_EQ(seen.offers, 2);
}

TEST_F(ConvTest, IsNothingWherePyTorchChooses) {
  EXPECT_FALSE(run_convolution(call(), "auto", rows));
  EXPECT_FALSE(run_convolution(call(), "f64:cpu.fake", rows));
  set_context_choices({parse_choice("cpu.fake"), {}, {}});
  EXPECT_FALSE(run_convolution(call(), "free", rows));
  EXPECT_TRUE(run_convolution(call(), "auto", rows));
}

TEST_F(ConvTest, AsksArgumentThenContextThenFlagThenPlan) {
  const ConvProblem problem = *conv_problem(call());
  const auto ask = [&](const char* argument) {
    return requested_name(parse_choice(argument), problem, DeviceKind::kCpu, conv_settings());
  };
  EXPECT_EQ(ask("auto"), "");
  set_planned_choices({{to_string(Problem(problem)), parse_choice("cpu.plan")}});
  EXPECT_EQ(ask("auto"), "cpu.plan");
  set_flag_choices({parse_choice("cpu.flag"), {}, {}});
  EXPECT_EQ(ask("auto"), "cpu.flag");
  set_context_choices({parse_choice("f16:cpu.half"), parse_choice("cpu.data"), {}});
  EXPECT_EQ(ask("auto"), "cpu.flag");
  set_context_choices({parse_choice("cpu.context"), {}, {}});
  EXPECT_EQ(ask("auto"), "cpu.context");
  EXPECT_EQ(ask("cpu.argument"), "cpu.argument");
  EXPECT_EQ(ask("free"), "");
}

TEST_F(ConvTest, RecordsWhatRanAtWhichStep) {
  set_recording(true);
  static_cast<void>(run_convolution(call(), "cpu.fake", rows));
  static_cast<void>(run_convolution(call(), "cpu.fake", rows));
  static_cast<void>(run_convolution(call(), "cpu.other", rows));
  static_cast<void>(run_convolution(call(), "auto", rows));
  const std::string problem = to_string(Problem(*conv_problem(call())));
  EXPECT_EQ(recorded_runs(), (std::vector<RecordedRun>{{problem, "aten.conv", "aten", 1},
                                                       {problem, "auto", "free", 1},
                                                       {problem, "cpu.fake", "other_layouts", 2}}));
}

TEST_F(ConvTest, CountsAFallbackUnderTheProblemAndRaisesWhenStrict) {
  const auto result = run_convolution(call(), "cpu.other", rows);
  ASSERT_TRUE(result);
  const auto counted = fallbacks();
  ASSERT_EQ(counted.size(), 1U);
  EXPECT_EQ(counted.begin()->first, to_string(Problem(*conv_problem(call()))));
  EXPECT_EQ(counted.begin()->second, (Fallback{1, "this build has no cpu.other"}));
  set_strict(true);
  EXPECT_THROW(static_cast<void>(run_convolution(call(), "cpu.other", rows)), Error);
}

TEST_F(ConvTest, ReadsTorchsDeterminismInEachCall) {
  rows = aten_algorithms();
  rows.push_back(fake_row(seen, Layout::kNchw, {.is_deterministic = false}));
  EXPECT_TRUE(run_convolution(call(), "cpu.fake", rows));
  at::globalContext().setDeterministicCuDNN(true);
  EXPECT_THROW(static_cast<void>(run_convolution(call(), "cpu.fake", rows)), Error);
  at::globalContext().setDeterministicCuDNN(false);
  EXPECT_TRUE(run_convolution(call(), "cpu.fake", rows));
}

TEST_F(ConvTest, ReadsA1dConvolutionAsA2dOne) {
  ConvCall line = call();
  line.src = at::rand({2, 5, 7});
  line.weights = at::rand({3, 5, 3});
  line.result_sizes = {2, 3, 7};
  line.padding = line.stride = line.dilation = at::IntArrayRef(one).slice(0, 1);
  EXPECT_EQ(to_string(Problem(*conv_problem(line))),
            "fwd_f32_n2c5h1w7_k3r1s3_st1x1_pad0x1_dil1x1_g1");
  const auto result = run_convolution(line, "cpu.fake", rows);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->sizes(), (std::vector<std::int64_t>{2, 3, 7}));
  EXPECT_TRUE(result->is_contiguous());
}

TEST_F(ConvTest, LeavesWhatIsNoProblemToPyTorch) {
  const auto change = [&](auto edit) {
    ConvCall changed = call();
    edit(changed);
    return conv_problem(changed).has_value();
  };
  EXPECT_TRUE(change([](ConvCall&) {}));
  EXPECT_FALSE(change([](ConvCall& c) { c.weights = c.weights.to(at::kDouble); }));
  EXPECT_FALSE(change([](ConvCall& c) { c.bias = at::zeros(4); }));
  EXPECT_FALSE(change([](ConvCall& c) { c.groups = 2; }));
  EXPECT_FALSE(change([](ConvCall& c) { c.groups = 0; }));
  EXPECT_FALSE(change([](ConvCall& c) { c.result_sizes[2] = 8; }));
  EXPECT_FALSE(change([](ConvCall& c) { c.src = c.src.narrow(0, 0, 0); }));
  EXPECT_FALSE(change([](ConvCall& c) { c.src = c.src.to_sparse(); }));
  EXPECT_FALSE(change([](ConvCall& c) {
    static const std::vector<std::int64_t> minus = {-1, -1};
    c.padding = minus;
  }));
}

}  // namespace
}  // namespace torchalgo

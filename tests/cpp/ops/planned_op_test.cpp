// SPDX-License-Identifier: BSD-3-Clause
#include "ops/planned_op.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <limits>
#include <thread>
#include <tuple>

#include "all_algorithms.h"
#include "aten_algo/list.h"
#include "aten_algo/strided.h"
#include "base/error.h"
#include "ops/settings.h"
#include "profiler/check.h"
#include "provider/kernel.h"

namespace torchalgo {
namespace {

constexpr const char* kConv = "fwd_f32_n2c12h9w8_k20r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu";

// A layer with random weights.
struct Layer {
  Problem problem;
  Primitive primitive;
  Sample sample;
  std::unique_ptr<PlannedOp> op;

  Layer(const char* text, Primitive chosen, const Algorithms& rows = all_algorithms())
      : problem(parse_problem(text)),
        primitive(std::move(chosen)),
        sample(make_sample(problem, 1)) {
    op = std::make_unique<PlannedOp>(
        OpState{text, primitive.name, std::string(to_string(primitive.src)),
                std::string(to_string(primitive.dst)), "layer1.conv", sample.weights},
        rows);
  }

  // The layer on random inputs of other sizes: the result in nchw and what it should be.
  std::pair<at::Tensor, at::Tensor> run(const Problem& on, at::IntArrayRef size = {}) const {
    Sample other = make_sample(on, 2);
    other.weights = sample.weights;
    std::vector<at::Tensor> src;
    for (const at::Tensor& tensor : other.src) {
      src.push_back(to_layout(tensor, input_layout(on, primitive)));
    }
    at::Tensor residual;
    if (other.residual.defined())
      residual = to_layout(other.residual, result_layout(on, primitive));
    const at::Tensor dst = op->run(src, residual, nullptr, size);
    return {from_layout(dst, result_layout(on, primitive), result_sizes(on)),
            reference_result(on, other)};
  }
};

// The limit of bf16 also holds if an input was rounded to bf16, as `is_rounded` says.
testing::AssertionResult is_close(const std::pair<at::Tensor, at::Tensor>& pair,
                                  bool is_rounded = false) {
  const auto& [result, reference] = pair;
  if (result.sizes() != reference.sizes()) return testing::AssertionFailure() << "other sizes";
  const double error =
      (result.to(at::kDouble) - reference).norm().item<double>() / reference.norm().item<double>();
  const double limit = is_rounded || result.scalar_type() == at::kBFloat16 ? 1e-2 : 1e-5;
  if (error <= limit) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "relative error " << error;
}

class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

class PlannedOpTest : public testing::Test {
 protected:
  PlannedOpTest() { reset_fallbacks(); }
  ~PlannedOpTest() override { set_strict(false); }
  Warnings warnings_;
  const c10::WarningUtils::WarningHandlerGuard collect_warnings_{&warnings_};
  const at::NoGradGuard no_grad_;
};

// Counts its calls, so that a test knows that it ran: ATen's convolution with an own name.
struct Spy {
  std::atomic<int> runs = 0, packs = 0;
  bool refuses_to_pack = false;
  Algorithms rows;

  explicit Spy(bool packs_for_all_sizes, std::int64_t max_height = 1 << 20) {
    const Algorithm& aten = *find_algorithm(aten_algorithms(), "aten.prepacked");
    Algorithm row = aten;
    row.name = "cpu.spy";
    row.offer = [max_height](const Problem& problem, const Device&) -> Offer {
      if (std::get<ConvProblem>(problem).h > max_height) return {{}, "image is too high"};
      return {{{"cpu.spy", Layout::kNhwc, Layout::kNhwc, 100}}, {}};
    };
    row.prepare = [this, packs_for_all_sizes, prepare = aten.prepare](
                      const Problem& problem, const Primitive& primitive, const Device& device) {
      Kernel kernel = prepare(problem, primitive, device);
      kernel.packing = packs_for_all_sizes ? "spy" : "";
      kernel.pack = [this, pack = kernel.pack](const Weights& weights) {
        TORCHALGO_CHECK(!refuses_to_pack, "TA5105 a CUDA graph is being captured");
        ++packs;
        return pack(weights);
      };
      kernel.run = [this, run = kernel.run](const KernelArgs& args) {
        ++runs;
        EXPECT_NE(args.workspace, nullptr);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(args.workspace) % 64, 0U);
        return run(args);
      };
      return kernel;
    };
    rows = aten_algorithms();
    rows.push_back(row);
  }
};

const Primitive kSpy = {"cpu.spy", Layout::kNhwc, Layout::kNhwc, 0};

TEST_F(PlannedOpTest, RunsThePlannedRowWithAWorkspaceAndPacksOnce) {
  Spy spy(false);
  const Layer layer(kConv, kSpy, spy.rows);
  EXPECT_EQ(spy.packs, 1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_close(layer.run(layer.problem)));
  EXPECT_EQ(spy.packs, 1);
  EXPECT_EQ(spy.runs, 3);
  EXPECT_TRUE(fallbacks().empty());
}

TEST_F(PlannedOpTest, IsRightOnOtherSizesWithoutAFallback) {
  for (const bool packs_for_all_sizes : {false, true}) {
    Spy spy(packs_for_all_sizes);
    const Layer layer(kConv, kSpy, spy.rows);
    const int sizes = 12;  // more than it remembers
    for (int turn = 0; turn < 2; ++turn) {
      for (int i = 1; i <= sizes; ++i) {
        EXPECT_TRUE(is_close(layer.run(with_input_sizes(layer.problem, {{i % 4 + 1, 12, i, 5}}))));
      }
    }
    EXPECT_EQ(spy.runs, 2 * sizes);
    EXPECT_EQ(spy.packs, packs_for_all_sizes ? 1 : 1 + 2 * sizes);
  }
  EXPECT_TRUE(fallbacks().empty());
}

TEST_F(PlannedOpTest, PacksInTheNextCallIfPackingWasRefused) {
  Spy spy(false);
  const Layer layer(kConv, kSpy, spy.rows);
  const Problem other = with_input_sizes(layer.problem, {{1, 12, 10, 5}});
  spy.refuses_to_pack = true;
  EXPECT_THROW(layer.run(other), Error);
  spy.refuses_to_pack = false;
  EXPECT_TRUE(is_close(layer.run(other)));
  EXPECT_EQ(spy.packs, 2);
}

TEST_F(PlannedOpTest, PacksOnceAndNeverFallsBackForManySizesAndBatches) {
  constexpr const char* k3x3 = "fwd_f32_n1c32h40w40_k48r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu";
  constexpr const char* kDepthwise = "fwd_f32_n1c32h40w40_k32r3s3_st1x1_pad1x1_dil1x1_g32+bias";
  constexpr const char* kGrouped = "fwd_f32_n1c32h40w40_k32r3s3_st1x1_pad1x1_dil1x1_g4+bias";
  set_strict(true);
  for (const auto& [text, name, layout] :
       {std::tuple(k3x3, "cpu.winograd_f4x4_3x3.t56", Layout::kNChw16c),
        std::tuple(k3x3, "cpu.winograd_f6x6_3x3.t56", Layout::kNChw16c),
        std::tuple(k3x3, "cpu.winograd_f4x4_3x3_nhwc.t14", Layout::kNhwc),
        std::tuple(kDepthwise, "cpu.depthwise", Layout::kNhwc),
        std::tuple(kGrouped, "cpu.grouped", Layout::kNChw16c),
        std::tuple("scaleshift_f32_n1c32h40w40+relu", "cpu.scale_shift", Layout::kNChw16c)}) {
    const Layer layer(text, {name, layout, layout, 0});
    const std::int64_t bytes = layer.op->packed_bytes();
    for (int i = 1; i <= 12; ++i) {
      const Problem other = with_input_sizes(layer.problem, {{i % 4 == 0 ? 9 : 1, 32, i, 3 * i}});
      EXPECT_TRUE(is_close(layer.run(other))) << name << " " << to_string(other);
      EXPECT_EQ(layer.op->packed_bytes(), bytes) << name;
    }
  }
  EXPECT_TRUE(fallbacks().empty());
}

TEST_F(PlannedOpTest, KeepsThePlannedPrimitiveInLargerBatches) {
  set_strict(true);
  const Layer linear("linear_f32_n1c40_k24+bias", {"cpu.linear", Layout::kNchw, Layout::kNchw, 0});
  const Layer excite(
      "chain_f32_n1c40h5w5_avgpool_k16r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu"
      "_k40r1s1_st1x1_pad0x0_dil1x1_g1+bias",
      {"cpu.squeeze_excite", Layout::kNChw16c, Layout::kNChw16c, 0});
  for (const std::int64_t n : {2, 32, 33, 100}) {
    EXPECT_TRUE(is_close(linear.run(with_input_sizes(linear.problem, {{n, 40}})))) << n;
  }
  const Layer concat("concat_f32_n1c32x20h5w4",
                     {"view.concat", Layout::kNChw16c, Layout::kNChw16c, 0});
  const Layer slice("slice_f32_n1c48h5w4_k20from16",
                    {"view.slice", Layout::kNchw, Layout::kNchw, 0});
  const Layer blocks("slice_f32_n1c48h5w4_k32from16",
                     {"view.slice", Layout::kNChw16c, Layout::kNChw16c, 0});
  for (const std::int64_t n : {1, 2, 5}) {
    const Problem joined = with_input_sizes(concat.problem, {{n, 32, 5, 4}, {n, 20, 5, 4}});
    EXPECT_TRUE(is_close(concat.run(joined))) << n;
    for (const Layer* each : {&slice, &blocks}) {
      const Problem part = with_input_sizes(each->problem, {{n, 48, 5, 4}});
      EXPECT_TRUE(is_close(each->run(part))) << to_string(each->primitive) << n;
    }
  }
  EXPECT_TRUE(fallbacks().empty());
  for (const std::int64_t n : {2, 33}) {
    const Problem other = with_input_sizes(excite.problem, {{n, 40, 5, 5}});
    const at::Tensor src = to_layout(make_sample(other, 2).src[0], Layout::kNChw16c);
    EXPECT_EQ(excite.op->run({&src, 1}, {}).size(0), n);
  }
  EXPECT_TRUE(fallbacks().empty());
}

TEST_F(PlannedOpTest, FallsBackAndCountsWhereThePlannedRowRefusesASize) {
  Spy spy(true, 9);
  const Layer layer(kConv, kSpy, spy.rows);
  const Problem high = with_input_sizes(layer.problem, {{1, 12, 10, 5}});
  EXPECT_TRUE(is_close(layer.run(layer.problem)));
  EXPECT_TRUE(is_close(layer.run(high)));
  EXPECT_TRUE(is_close(layer.run(high)));
  EXPECT_EQ(spy.runs, 1);
  ASSERT_EQ(fallbacks().size(), 1U);
  EXPECT_EQ(fallbacks().at("layer1.conv").count, 2);
  EXPECT_NE(fallbacks().at("layer1.conv").reason.find("image is too high"), std::string::npos);
  reset_fallbacks();
  EXPECT_TRUE(fallbacks().empty());
}

TEST_F(PlannedOpTest, WarnsOnceThatThePlannedPrimitiveIsMissing) {
  const Layer layer(kConv, {"cpu.from_the_future", Layout::kNhwc, Layout::kNhwc, 0});
  for (int i = 0; i < 3; ++i) static_cast<void>(layer.run(layer.problem));
  ASSERT_EQ(warnings_.texts.size(), 1U);
  EXPECT_NE(warnings_.texts[0].find("'layer1.conv' was planned for cpu.from_the_future"),
            std::string::npos);
}

TEST_F(PlannedOpTest, RaisesInsteadOfFallingBackWhenStrict) {
  const Layer layer(kConv, {"cpu.from_the_future", Layout::kNhwc, Layout::kNhwc, 0});
  EXPECT_TRUE(is_close(layer.run(layer.problem)));
  EXPECT_FALSE(set_strict(true));
  try {
    static_cast<void>(layer.run(layer.problem));
    FAIL() << "ran";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("layer1.conv"), std::string::npos) << text;
    EXPECT_NE(text.find("this build has no cpu.from_the_future"), std::string::npos) << text;
  }
  EXPECT_TRUE(set_strict(false));
  EXPECT_TRUE(is_close(layer.run(layer.problem)));
}

TEST_F(PlannedOpTest, FallsBackToAtenFromEveryLayoutToEveryLayout) {
  for (const char* text : {"fwd_f32_n2c12h9w8_k20r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+hardswish",
                           "bwd_data_f32_n1c8h14w14_k16r3s3_st2x2_pad1x1_dil1x1_g1+bias+relu",
                           "maxpool_f32_n2c12h9w8_r2s2_st2x2_pad0x0_dil1x1",
                           "add_f32_n2c12h9w8+relu",
                           "mul_f32_n2c12h9w8_channelwise",
                           "scaleshift_f32_n2c12h9w8+relu",
                           "layernorm_f32_n2c12h9w8_eps1e-05",
                           "rmsnorm_f32_n2c12h9w8_eps1e-05",
                           "variancenorm_f32_n2c12h9w8_eps1e-05",
                           "groupnorm_f32_n2c12h9w8_g3_eps1e-05+silu",
                           "moments_f32_n2c12h9w8",
                           "normalize_f32_n2c12h9w8_eps1e-05+add+relu",
                           "bwd_normalize_sums_f32_n2c12h9w8_eps1e-05",
                           "bwd_normalize_f32_n2c12h9w8_eps1e-05",
                           "bwd_normalize_sums_f32_n2c12h9w8_eps1e-05+relu",
                           "bwd_silu_f32_n2c12h9w8",
                           "bwd_maxpool_f32_n2c12h9w8_r2s2_st2x2_pad0x0_dil1x1",
                           "channelsums_f32_n2c12h9w8",
                           "channelsums_f32_n2c12h9w8_perimage_product",
                           "silu_f32_n2c12h9w8",
                           "concat_f32_n2c12x3x16h9w8",
                           "nearest_f32_n2c12h9w8_x2x2",
                           "fwd_bf16_n2c12h9w8_k20r3s3_st1x1_pad1x1_dil1x1_g1+relu"}) {
    for (const Layout src : kAllLayouts) {
      for (const Layout dst : kAllLayouts) {
        // Only what ATen has: no own row may help.
        const Layer layer(text, {"cpu.gone", src, dst, 0}, aten_algorithms());
        EXPECT_TRUE(is_close(layer.run(layer.problem), is_typed(src) || is_typed(dst)))
            << text << " " << to_string(src) << "->" << to_string(dst);
      }
    }
  }
}

// A library with heuristics, which fuses nothing behind `fused`.
Algorithm library_that_fuses(const Epilogue& fused) {
  Algorithm library = *find_algorithm(aten_algorithms(), "aten.conv");
  library.name = "cpu.library";
  library.is_fallback = false;
  library.offer_one = [fused](const Problem& problem, const Device&,
                              const Primitive& asked) -> Offer {
    if (asked.name != "cpu.library") return {{}, "has no such engine"};
    if (epilogue_of(problem) != fused) return {{}, "fuses something else"};
    return {{{"cpu.library.e7", asked.src, asked.dst, 0}}, {}};
  };
  library.offer = [](const Problem&, const Device&) -> Offer {
    return {{{"cpu.library.e0", Layout::kNhwc, Layout::kNhwc, 0}}, {}};  // first, and slow
  };
  return library;
}

TEST_F(PlannedOpTest, RunsTheProposalOfALibraryWithTheRestOfTheEpilogueBehindIt) {
  Algorithms rows = aten_algorithms();
  rows.push_back(library_that_fuses({PostOp::kBias}));
  for (const char* const epilogue : {"+bias", "+bias+add+silu"}) {
    const std::string text = "fwd_f32_n2c12h9w8_k20r3s3_st1x1_pad1x1_dil1x1_g1";
    const Layer layer((text + epilogue).c_str(),
                      {"cpu.library.e99", Layout::kNhwc, Layout::kNhwc, 0}, rows);
    EXPECT_TRUE(is_close(layer.run(layer.problem)));
    ASSERT_EQ(warnings_.texts.size(), 1U);
    EXPECT_NE(warnings_.texts[0].find("cpu.library.e7 runs instead"), std::string::npos)
        << warnings_.texts[0];
    warnings_.texts.clear();
  }
}

TEST_F(PlannedOpTest, FallbackLeavesZeroPadLanesInTheDenseStridesOfThePlan) {
  const Layer layer(kConv, {"cpu.gone", Layout::kNchw, Layout::kNChw16c, 0}, aten_algorithms());
  const at::Tensor dst = layer.op->run({layer.sample.src}, {});
  EXPECT_EQ(dst.sizes(), at::IntArrayRef({2, 2, 9, 8, 16}));
  EXPECT_TRUE(dst.is_contiguous());
  EXPECT_EQ(dst.select(1, 1).narrow(-1, 4, 12).count_nonzero().item<std::int64_t>(), 0);
}

TEST_F(PlannedOpTest, TransformsBetweenAllLayouts) {
  const at::Tensor image = at::randn({2, 20, 5, 3}).to(at::kBFloat16).to(at::kFloat);
  for (const Algorithms* rows : {&all_algorithms(), &aten_algorithms()}) {
    for (const Layout src : kAllLayouts) {
      for (const Layout dst : kAllLayouts) {
        if (src == dst) continue;
        const std::string problem = "transform_f32_n2c20h5w3_" + std::string(to_string(src)) + "_" +
                                    std::string(to_string(dst));
        const Layer layer(problem.c_str(), {"layout.tiled", src, dst, 0}, *rows);
        const std::vector<at::Tensor> inputs = {to_layout(image, src)};
        const at::Tensor result = layer.op->run(inputs, {});
        EXPECT_TRUE(result.equal(to_layout(image, dst))) << problem;
      }
    }
  }
}

TEST_F(PlannedOpTest, ReturnsNoAliasOfItsInput) {
  const Layer layer("transform_f32_n2c1h5w3_nchw_nhwc", {"gone", Layout::kNchw, Layout::kNhwc, 0},
                    aten_algorithms());
  const std::vector<at::Tensor> inputs = {at::randn({2, 1, 5, 3})};
  EXPECT_NE(layer.op->run(inputs, {}).data_ptr(), inputs[0].data_ptr());
}

TEST_F(PlannedOpTest, TakesInputsOfAnyStrides) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    const Layer layer(kConv, {"aten.conv", layout, layout, 0});
    const at::Tensor image = layer.sample.src[0];
    const at::Tensor expected = layer.op->run({layer.sample.src}, {});
    const std::vector<at::Tensor> views = {image.transpose(2, 3).contiguous().transpose(2, 3),
                                           image.clone(at::MemoryFormat::ChannelsLast),
                                           at::randn({4, 12, 9, 8}).slice(0, 0, 4, 2).copy_(image),
                                           image.clone()};
    for (const at::Tensor& view : views) {
      const at::Tensor dst = layer.op->run({&view, 1}, {});
      EXPECT_EQ(dst.strides(), at::IntArrayRef(dense_strides(dst.sizes(), layout)));
      EXPECT_TRUE(dst.allclose(expected, 1e-4, 1e-5));
    }
  }
}

TEST_F(PlannedOpTest, CountsARank3InputAsHeightOne) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    const Layer layer("fwd_f32_n2c12h1w30_k8r1s5_st1x2_pad0x2_dil1x1_g1+bias",
                      {"aten.conv", layout, layout, 0});
    for (const std::int64_t width : {30, 31}) {
      const at::Tensor line = at::randn({2, 12, width});
      const at::Tensor dst = layer.op->run({&line, 1}, {});
      const at::Tensor image = line.unsqueeze(2);
      ASSERT_EQ(dst.dim(), 3);
      EXPECT_TRUE(dst.allclose(layer.op->run({&image, 1}, {}).squeeze(2)));
    }
  }
}

TEST_F(PlannedOpTest, TakesNoUnbatchedImageForALine) {
  // h = 1 by chance: the filter has three rows.
  const Layer layer("fwd_f32_n12c12h1w30_k8r3s3_st1x1_pad1x1_dil1x1_g1",
                    {"aten.conv", Layout::kNchw, Layout::kNchw, 0});
  const at::Tensor unbatched = at::randn({12, 12, 30});
  EXPECT_THROW(static_cast<void>(layer.op->run({&unbatched, 1}, {})), Error);
}

TEST_F(PlannedOpTest, GivesAnEmptyResultForAnEmptyBatch) {
  const Layer layer(kConv, {"aten.prepacked", Layout::kNhwc, Layout::kNhwc, 0});
  const at::Tensor none = at::randn({0, 12, 9, 8});
  EXPECT_EQ(layer.op->run({&none, 1}, {}).sizes(), at::IntArrayRef({0, 20, 9, 8}));
}

TEST_F(PlannedOpTest, MakesAResultOfTheSizeThatACallAsksFor) {
  const Primitive resize = {"cpu.resize", Layout::kNChw16c, Layout::kNChw16c, 0};
  const Primitive pool = {"aten.pool", Layout::kNchw, Layout::kNchw, 0};
  const auto is_right = [](const Layer& layer, const std::string& on) {
    const std::vector<std::int64_t> made = result_sizes(parse_problem(on));
    return is_close(layer.run(parse_problem(on), at::IntArrayRef(made).slice(2, 2)));
  };
  const Layer bilinear("bilinear_f32_n1c20h5w4_p9q8", resize);
  for (const char* on : {"bilinear_f32_n1c20h5w4_p3q7", "bilinear_f32_n1c20h5w4_p9q8",
                         "bilinear_f32_n2c20h6w4_p9q8", "bilinear_f32_n2c20h6w4_p9q9"}) {
    EXPECT_TRUE(is_right(bilinear, on)) << on;
  }
  const Layer average("avgpool_f32_n1c20h8w6_p2q3", pool);
  for (const char* on : {"avgpool_f32_n1c20h8w6_p4q3", "avgpool_f32_n1c20h8w6_p2q3"}) {
    EXPECT_TRUE(is_right(average, on)) << on;
  }
  EXPECT_TRUE(fallbacks().empty());
  const at::Tensor none = at::randn({0, 2, 6, 4, 16});
  EXPECT_EQ(bilinear.op->run({&none, 1}, {}, nullptr, {7, 5}).sizes(),
            at::IntArrayRef({0, 2, 7, 5, 16}));
}

TEST_F(PlannedOpTest, RefusesASizeThatItCannotMake) {
  const auto error = [](const Layer& layer, at::IntArrayRef size) -> std::string {
    try {
      (void)layer.op->run(layer.sample.src, {}, nullptr, size);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  const Primitive nearest = {"aten.resize", Layout::kNchw, Layout::kNchw, 0};
  const std::string expected = "expected a height and a width of 1 or more";
  const Layer to_size("nearest_f32_n1c4h5w4_p9q8", nearest);
  EXPECT_NE(error(to_size, {9}).find(expected), std::string::npos);
  EXPECT_NE(error(to_size, {9, 0}).find(expected), std::string::npos);
  const Layer by_factor("nearest_f32_n1c4h5w4_x2x2", nearest);
  EXPECT_NE(error(by_factor, {9, 8}).find("expected none"), std::string::npos);
}

TEST_F(PlannedOpTest, PassesNansOn) {
  const Layer layer("relu_f32_n1c4h2w2", {"aten.eltwise", Layout::kNchw, Layout::kNchw, 0});
  const at::Tensor nan = at::randn({1, 4, 2, 2}).fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(layer.op->run({&nan, 1}, {}).isnan().all().item<bool>());
}

TEST_F(PlannedOpTest, IsRightForEveryNumberOfThreads) {
  const Layer layer(kConv, {"aten.prepacked", Layout::kNhwc, Layout::kNhwc, 0});
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 3, 1, 2}) {
    at::set_num_threads(count);
    EXPECT_TRUE(is_close(layer.run(layer.problem)));
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(fallbacks().empty());
}

// Runs `op` on images of every height up to 12, which is more than it keeps executions for.
void run_at_all_heights(const PlannedOp& op) {
  const at::NoGradGuard no_grad;
  for (std::int64_t height = 3; height <= 12; ++height) {
    const at::Tensor image = at::zeros({2, 12, height, 64});
    static_cast<void>(op.run({&image, 1}, {}));
  }
}

TEST_F(PlannedOpTest, RunsInTheChildOfAForkWhileOtherThreadsRunIt) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "in a child, a lock of the sanitizer's memory may stay locked";
#endif
  const int before = at::get_num_threads();
  at::set_num_threads(1);  // OpenMP's threads do not exist in a child
  const Layer layer(kConv, {"cpu.direct", Layout::kNhwc, Layout::kNhwc, 0});
  run_at_all_heights(*layer.op);
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      at::set_num_threads(1);
      while (!stop) run_at_all_heights(*layer.op);
    });
  }
  int hung = 0;
  for (int i = 0; i < 60; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(20);
      run_at_all_heights(*layer.op);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    hung += status != 0;
    if (hung > 0) break;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  at::set_num_threads(before);
  EXPECT_EQ(hung, 0);
}

TEST_F(PlannedOpTest, ServesSeveralThreadsAtOnceOnPlannedAndOtherSizes) {
  Spy spy(true);
  const Layer layer(kConv, kSpy, spy.rows);
  std::atomic<int> failures = 0;
  const auto work = [&](int first) {
    const at::NoGradGuard no_grad;
    for (int i = 0; i < 30; ++i) {
      const std::int64_t height = (first + i) % 3 == 0 ? 9 : 3 + (first + i) % 12;
      const Problem problem = with_input_sizes(layer.problem, {{2, 12, height, 8}});
      if (!is_close(layer.run(problem))) ++failures;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(spy.runs, 4 * 30);
}

std::string error_of(const PlannedOp& op, std::vector<at::Tensor> src, const at::Tensor& residual) {
  try {
    static_cast<void>(op.run(src, residual));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(PlannedOpTest, ExplainsInputsThatDoNotFit) {
  const Layer layer(kConv, {"aten.conv", Layout::kNchw, Layout::kNchw, 0});
  const auto error = [&](std::vector<at::Tensor> src, const at::Tensor& residual = {}) {
    return error_of(*layer.op, std::move(src), residual);
  };
  const at::Tensor image = layer.sample.src[0];
  EXPECT_EQ(
      error({image.to(at::kHalf)}),
      "TA4304 torchalgo: layer 'layer1.conv' was planned for Float, got Half: convert the input or "
      "optimize the model in that dtype");
  EXPECT_NE(error({image[0]}).find("has rank 3, expected 4"), std::string::npos);
  EXPECT_NE(error({at::randn({2, 13, 9, 8})}).find("12 channels"), std::string::npos);
  EXPECT_NE(error({}).find("expected 1 inputs, got 0"), std::string::npos);
  EXPECT_NE(error({image, image}).find("expected 1 inputs, got 2"), std::string::npos);
  EXPECT_NE(error({at::Tensor()}).find("undefined"), std::string::npos);
  EXPECT_NE(error({image}, image).find("got a residual"), std::string::npos);
  EXPECT_NE(error({image.to_sparse()}).find("expected a dense tensor"), std::string::npos);
}

TEST_F(PlannedOpTest, ResultsOnMetaHaveTheSameSizesAndStrides) {
  for (const auto& [from, to] :
       {std::pair{Layout::kNchw, Layout::kNhwc}, std::pair{Layout::kNChw16c, Layout::kNchw}}) {
    const Layer layer("fwd_f32_n1c20h9w8_k20r3s3_st1x1_pad1x1_dil1x1_g1+add",
                      {"cpu.gone", from, to, 0}, aten_algorithms());
    for (const std::int64_t n : {1, 3, 0}) {
      const std::vector<std::int64_t> sizes = {n, 20, n == 3 ? 11 : 9, 8};
      const TensorShape in = shape_in(sizes, from), out = shape_in(sizes, to);
      const at::Tensor src = at::zeros(in.sizes).as_strided(in.sizes, in.strides);
      const at::Tensor residual = at::zeros(out.sizes).as_strided(out.sizes, out.strides);
      const at::Tensor meta = layer.op->run(std::array{src.to(at::kMeta)}, residual.to(at::kMeta));
      const at::Tensor dst = layer.op->run(std::array{src}, residual);
      EXPECT_TRUE(meta.is_meta());
      EXPECT_EQ(meta.sizes(), dst.sizes());
      EXPECT_EQ(meta.strides(), dst.strides());
      EXPECT_EQ(meta.scalar_type(), dst.scalar_type());
    }
  }
}

TEST_F(PlannedOpTest, ExplainsBlockedInputsAndResidualsThatDoNotFit) {
  const Layer layer("fwd_f32_n1c20h9w8_k20r3s3_st1x1_pad1x1_dil1x1_g1+add",
                    {"cpu.gone", Layout::kNChw16c, Layout::kNchw, 0}, aten_algorithms());
  const at::Tensor src = at::randn({1, 2, 9, 8, 16}), residual = at::randn({1, 20, 9, 8});
  EXPECT_EQ(error_of(*layer.op, {src}, residual), "no error");
  for (const auto& sizes :
       std::vector<std::vector<std::int64_t>>{{1, 2, 9, 8, 8}, {1, 3, 9, 8, 16}, {1, 32, 9, 8}}) {
    EXPECT_NE(error_of(*layer.op, {at::randn(sizes)}, residual).find("[n, 2, h, w, 16]"),
              std::string::npos);
  }
  EXPECT_NE(error_of(*layer.op, {src}, at::randn({1, 20, 9, 7})).find("[1, 20, 9, 7]"),
            std::string::npos);
  EXPECT_NE(error_of(*layer.op, {src}, {}).find("got no residual"), std::string::npos);
}

TEST_F(PlannedOpTest, RejectsStatesThatDoNotFit) {
  const at::Tensor weights = at::randn({20, 12, 3, 3}), bias = at::randn({20});
  const auto make = [](OpState state) { const PlannedOp op(std::move(state), all_algorithms()); };
  const OpState good = {kConv, "aten.prepacked", "nhwc", "nhwc", "layer", {{weights, bias}}};
  EXPECT_NO_THROW(make(good));
  OpState bad = good;
  bad.problem = "fwd_f33";
  EXPECT_THROW(make(bad), Error);
  bad = good, bad.src = "NCHW";
  EXPECT_THROW(make(bad), Error);
  bad = good, bad.dst = "nChw8c";  // an older file
  try {
    make(bad);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "TA4003 torchalgo: layer 'layer': " + refuse_layout("nChw8c"));
  }
  bad = good, bad.weights[0].weights.reset();
  EXPECT_THROW(make(bad), Error);
  bad = good, bad.weights[0].bias.reset();
  EXPECT_THROW(make(bad), Error);
  bad = good, bad.weights[0].weights = weights.to(at::kDouble);
  EXPECT_THROW(make(bad), Error);
  bad = good, bad.weights[0].weights = at::randn({20, 12, 3, 5});
  EXPECT_THROW(make(bad), Error);
  bad = good, bad.weights[0].bias = at::randn({12});
  EXPECT_THROW(make(bad), Error);
  bad = good, bad.weights.push_back({weights, bias});
  EXPECT_THROW(make(bad), Error);
  bad = good, bad.problem = "relu_f32_n1c12h9w8";
  EXPECT_THROW(make(bad), Error);
}

TEST_F(PlannedOpTest, SharesTheWeightsOfTheModel) {
  const Layer layer(kConv, {"aten.prepacked", Layout::kNhwc, Layout::kNhwc, 0});
  EXPECT_EQ(layer.op->state().weights[0].weights.data_ptr(),
            layer.sample.weights[0].weights.data_ptr());
}

}  // namespace
}  // namespace torchalgo

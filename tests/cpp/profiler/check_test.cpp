// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "fake_kernel.h"
#include "provider/kernel.h"

namespace torchalgo {
namespace {

const char* const kProblem = "relu_f32_n2c17h5w3";

// A row that computes a ReLU in `layout`, and then spoils it.
Algorithms spoiled_relu(Layout layout, std::function<void(at::Tensor&)> spoil) {
  Algorithm row;
  row.name = "test.relu";
  row.prepare = prepare_fake([spoil](const KernelArgs& args) {
    at::Tensor dst = args.dst;
    dst.copy_(args.src[0].relu());
    spoil(dst);
    return dst;
  });
  row.offer = [layout](const Problem&, const Device&) -> Offer {
    return {{Primitive{"test.relu", layout, layout}}, {}};
  };
  return {row};
}

CheckResult check(const Algorithms& rows, Layout layout) {
  return check_primitives(rows, parse_problem(kProblem), {{"test.relu", layout, layout}}, 1e-6)[0];
}

TEST(CheckPrimitives, PassesARightOne) {
  for (const Layout layout : kAllLayouts) {
    const CheckResult result = check(spoiled_relu(layout, [](at::Tensor&) {}), layout);
    EXPECT_EQ(result.failure, "") << to_string(layout);
    if (is_typed(
            layout)) {  // rounded to 8 binary digits: a part of 2^-9 at most, a third on average
      EXPECT_GT(result.rel_error, 5e-4);
      EXPECT_LT(result.rel_error, 2e-3);
    } else {
      EXPECT_LE(result.rel_error, 1e-7);
    }
  }
}

TEST(CheckPrimitives, FindsOneWrongElement) {
  const auto rows = spoiled_relu(Layout::kNchw, [](at::Tensor& dst) { dst[1][16][4][2] += 0.01; });
  EXPECT_NE(check(rows, Layout::kNchw).failure.find("differs from the f64 reference"),
            std::string::npos);
}

TEST(CheckPrimitives, FindsPadLanesThatAreNotZero) {
  const auto rows =
      spoiled_relu(Layout::kNChw16c, [](at::Tensor& dst) { dst[0][1][0][0][9] = 1e-30; });
  EXPECT_EQ(check(rows, Layout::kNChw16c).failure, "left pad lanes that are not zero");
}

TEST(CheckPrimitives, FindsWhatWasNeverWritten) {
  Algorithms rows = spoiled_relu(Layout::kNchw, [](at::Tensor&) {});
  rows[0].prepare = prepare_fake([](const KernelArgs& args) {
    at::Tensor dst = args.dst;
    dst.narrow(0, 0, 1).copy_(args.src[0].relu().narrow(0, 0, 1));
    return dst;
  });
  EXPECT_NE(check(rows, Layout::kNchw).failure, "");
}

TEST(CheckPrimitives, RunsTwiceSoThatAFailureOfTheSecondTurnIsSeen) {
  int turn = 0;
  const auto rows = spoiled_relu(Layout::kNchw, [&](at::Tensor& dst) {
    if (turn++ == 1) dst.zero_();
  });
  EXPECT_NE(check(rows, Layout::kNchw).failure, "");
}

TEST(CheckPrimitives, CallsAnExceptionAFailure) {
  Algorithms rows = spoiled_relu(Layout::kNchw, [](at::Tensor&) {});
  rows[0].prepare = prepare_fake(
      [](const KernelArgs&) -> at::Tensor { throw std::runtime_error("out of luck"); });
  EXPECT_EQ(check(rows, Layout::kNchw).failure, "out of luck");
}

// A ReLU that compares as the processor's maximum does: NaN > 0 is false.
void lose_nans(at::Tensor& dst) { dst.masked_fill_(dst.ne(dst), 0); }

TEST(CheckPrimitives, FindsALostNan) {
  for (const Layout layout : kAllLayouts) {
    const std::string failure = check(spoiled_relu(layout, lose_nans), layout).failure;
    EXPECT_EQ(failure.find("loses a NaN"), 0U) << failure;
  }
}

TEST(CheckPrimitives, FindsANanThatIsLostFromTheResidual) {
  const Problem problem = parse_problem("fwd_f32_n1c4h8w8_k5r3s3_st1x1_pad1x1_dil1x1_g1+add+relu");
  Algorithm row;
  row.name = "test.conv";
  row.prepare = prepare_fake(
      [](const KernelArgs& args) {
        at::Tensor residual = args.residual.clone();
        lose_nans(residual);
        const at::Tensor sum = at::conv2d(args.src[0], args.packed[0].weights, {}, 1, 1) + residual;
        return args.dst.copy_(sum.relu());
      },
      [](const Weights& weights) {
        return Packed{{weights[0].weights, {}}};
      });
  const CheckResult result =
      check_primitives({row}, problem, {{"test.conv", Layout::kNchw, Layout::kNchw}}, 1e-5)[0];
  EXPECT_EQ(result.failure.find("loses a NaN"), 0U) << result.failure;
}

TEST(CheckPrimitives, FindsANanThatSpreads) {
  const auto spread = [](at::Tensor& dst) { dst.add_(dst.roll({1}, {2}) * 0); };
  for (const Layout layout : kAllLayouts) {
    const std::string failure = check(spoiled_relu(layout, spread), layout).failure;
    EXPECT_EQ(failure.find("spreads a NaN"), 0U) << failure;
  }
}

// Returns the moments of `x` over its last dimension. The variance is the mean of squares less the
// square of the mean, which cancels if the mean is large.
std::pair<at::Tensor, at::Tensor> cancelling_moments(const at::Tensor& x) {
  const at::Tensor mean = x.mean(-1, /*keepdim=*/true);
  return {mean, (x * x).mean(-1, /*keepdim=*/true) - mean * mean};
}

at::Tensor cancelling_norm(const at::Tensor& x) {
  const auto [mean, variance] = cancelling_moments(x);
  return (x - mean) * (variance + 1e-5).clamp_min(1e-5).rsqrt();
}

// Returns the failure of an algorithm that computes `run` of its input and of a scale and a shift.
std::string failure_of(const char* text, const std::function<at::Tensor(const at::Tensor&)>& run) {
  const Problem problem = parse_problem(text);
  Algorithm row;
  row.name = "test.norm";
  const auto run_fake = [run](const KernelArgs& args) {
    const at::Tensor result = run(args.src[0]);
    if (args.packed.empty()) return args.dst.copy_(result);
    const LayerWeights& by = args.packed[0];
    return args.dst.copy_(result * by.weights.view({-1, 1, 1}) + by.bias.view({-1, 1, 1}));
  };
  row.prepare = weight_sizes(problem).empty()
                    ? prepare_fake(run_fake)
                    : prepare_fake(run_fake, [](const Weights& w) { return Packed{w}; });
  return check_primitives({row}, problem, {{"test.norm", Layout::kNchw, Layout::kNchw}}, 1e-5)[0]
      .failure;
}

TEST(CheckPrimitives, FindsAVarianceThatCancels) {
  const std::string failures[] = {
      failure_of("groupnorm_f32_n2c8h9w9_g2_eps1e-05",
                 [](const at::Tensor& x) {
                   return cancelling_norm(x.reshape({2, 2, -1})).view_as(x);
                 }),
      failure_of(
          "layernorm_f32_n2c64h5w5_eps1e-05",
          [](const at::Tensor& x) { return cancelling_norm(x.movedim(1, -1)).movedim(-1, 1); }),
      failure_of("moments_f32_n2c8h9w9", [](const at::Tensor& x) {
        const auto [mean, variance] = cancelling_moments(x.movedim(1, 0).flatten(1));
        return at::stack({mean, variance}).view({2, -1, 1, 1});
      })};
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find("on inputs with a mean of 1000 deviations"), std::string::npos)
        << failure;
  }
}

TEST(CheckPrimitives, RefusesAPrimitiveThatIsNotOffered) {
  const auto rows = spoiled_relu(Layout::kNchw, [](at::Tensor&) {});
  EXPECT_THROW(static_cast<void>(check(rows, Layout::kNhwc)), Error);
}

TEST(ErrorBound, IsTheCallersForFloatAndTheTypesOwnForWhatRoundsMore) {
  EXPECT_EQ(error_bound(DType::kF32, 1e-6), 1e-6);
  EXPECT_EQ(error_bound(DType::kF16, 1e-6), 4e-3);
  EXPECT_EQ(error_bound(DType::kBf16, 1e-6), 3e-2);
  EXPECT_EQ(error_bound(DType::kTf32, 1e-6), 4e-3);
  EXPECT_EQ(error_bound(DType::kF16, 0.5), 0.5);
}

TEST(CheckPrimitives, GivesAHalfPrecisionRowItsOwnBound) {
  const auto relative = [](double error) {
    return spoiled_relu(Layout::kNchw, [=](at::Tensor& dst) { dst.mul_(1 + error); });
  };
  const Problem problem = parse_problem("relu_f16_n2c17h5w3");
  const auto failure = [&](double error) {
    return check_primitives(relative(error), problem, {{"test.relu", Layout::kNchw, Layout::kNchw}},
                            1e-6)[0]
        .failure;
  };
  EXPECT_EQ(failure(1e-3), "");
  EXPECT_NE(failure(1e-2), "");
}

TEST(ToLayout, IsUndoneByFromLayout) {
  for (const std::int64_t channels : {1, 3, 16, 17, 40}) {
    const at::Tensor nchw = at::randn({2, channels, 3, 5}).to(at::kBFloat16).to(at::kFloat);
    for (const Layout layout : kAllLayouts) {
      const at::Tensor there = to_layout(nchw, layout);
      EXPECT_EQ(there.numel(), element_count(layout, 2, channels, 15));
      EXPECT_TRUE(from_layout(there, layout, {2, channels, 3, 5}).to(at::kFloat).equal(nchw))
          << to_string(layout);
    }
  }
}

TEST(MakeSample, DependsOnTheSeedOnly) {
  const Problem problem = parse_problem("fwd_f32_n1c4h5w5_k3r3s3_st1x1_pad1x1_dil1x1_g1+bias+add");
  const Sample a = make_sample(problem, 1), b = make_sample(problem, 1),
               c = make_sample(problem, 2);
  EXPECT_TRUE(a.src[0].equal(b.src[0]));
  EXPECT_TRUE(a.weights[0].weights.equal(b.weights[0].weights));
  EXPECT_FALSE(a.src[0].equal(c.src[0]));
  EXPECT_EQ(a.src.size(), 1u);
  EXPECT_EQ(a.residual.sizes(), (std::vector<std::int64_t>{1, 3, 5, 5}));
  EXPECT_EQ(a.weights[0].bias.sizes(), (std::vector<std::int64_t>{3}));
}

TEST(MakeSample, HasTheOffsetAndResultsOfTheUsualSize) {
  for (const char* text :
       {"fwd_f32_n2c32h9w9_k32r3s3_st1x1_pad1x1_dil1x1_g1", "linear_f32_n64c64_k64",
        "scaleshift_f32_n2c32h9w9", "groupnorm_f32_n2c32h9w9_g4_eps1e-05",
        "normalize_f32_n2c32h9w9_eps1e-05"}) {
    const Problem problem = parse_problem(text);
    const Sample sample = make_sample(problem, 1, at::kCPU, 1000);
    EXPECT_NEAR(sample.src[0].mean().item<double>(), 1000, 0.2) << text;
    EXPECT_NEAR(sample.src[0].std().item<double>(), 1, 0.1) << text;
    const at::Tensor result = reference_result(problem, sample);
    EXPECT_LT(result.abs().mean().item<double>(), 5) << text;
    EXPECT_GT(result.abs().mean().item<double>(), 0.2) << text;
  }
}

TEST(MakeSample, GivesGradientsResidualsAndVariancesNoOffset) {
  const auto mean_of = [](const char* text, std::size_t i) {
    return make_sample(parse_problem(text), 1, at::kCPU, 1000).src.at(i).mean().item<double>();
  };
  EXPECT_LT(mean_of("bwd_silu_f32_n2c32h9w9", 1), 5);
  EXPECT_LT(mean_of("bwd_normalize_sums_f32_n2c32h9w9_eps1e-05", 0), 5);
  EXPECT_LT(mean_of("bwd_filter_f32_n2c8h9w9_k8r3s3_st1x1_pad1x1_dil1x1_g1", 1), 5);
  const Sample norm =
      make_sample(parse_problem("normalize_f32_n2c32h9w9_eps1e-05+add"), 1, at::kCPU, 1000);
  EXPECT_NEAR(norm.src.at(1)[0].mean().item<double>(), 1000, 5);
  EXPECT_LT(norm.src.at(1)[1].mean().item<double>(), 5);
  EXPECT_LT(norm.residual.mean().item<double>(), 5);
}

TEST(SampleOffsets, AreThoseBesideWhichTheTypeHoldsDeviations) {
  EXPECT_EQ(sample_offsets(DType::kF32), (std::vector<double>{0, 10, 1000}));
  EXPECT_EQ(sample_offsets(DType::kF16), (std::vector<double>{0, 10}));
  EXPECT_EQ(sample_offsets(DType::kBf16), (std::vector<double>{0, 10}));
}

}  // namespace
}  // namespace torchalgo

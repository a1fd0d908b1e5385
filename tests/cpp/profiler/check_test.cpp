// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "base/error.h"
#include "fake_kernel.h"

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
    EXPECT_LE(result.rel_error, 1e-7);
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

TEST(CheckPrimitives, RefusesAPrimitiveThatIsNotOffered) {
  const auto rows = spoiled_relu(Layout::kNchw, [](at::Tensor&) {});
  EXPECT_THROW(static_cast<void>(check(rows, Layout::kNhwc)), Error);
}

TEST(ErrorBound, IsTheCallersForFloatAndTheTypesOwnForWhatRoundsMore) {
  EXPECT_EQ(error_bound(parse_problem("relu_f32_n2c17h5w3"), 1e-6), 1e-6);
  EXPECT_EQ(error_bound(parse_problem("relu_f16_n2c17h5w3"), 1e-6), 4e-3);
  EXPECT_EQ(error_bound(parse_problem("relu_bf16_n2c17h5w3"), 1e-6), 3e-2);
  EXPECT_EQ(error_bound(parse_problem("relu_tf32_n2c17h5w3"), 1e-6), 4e-3);
  EXPECT_EQ(error_bound(parse_problem("relu_f16_n2c17h5w3"), 0.5), 0.5);
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
    const at::Tensor nchw = at::randn({2, channels, 3, 5});
    for (const Layout layout : kAllLayouts) {
      const at::Tensor there = to_layout(nchw, layout);
      EXPECT_EQ(there.numel(), element_count(layout, 2, channels, 15));
      EXPECT_TRUE(from_layout(there, layout, {2, channels, 3, 5}).equal(nchw)) << to_string(layout);
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

}  // namespace
}  // namespace torchalgo

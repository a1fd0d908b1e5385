// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

constexpr double kBound = 2e-6;

BatchNormProblem make_step(BatchNormStep step, std::int64_t n, std::int64_t c, std::int64_t h,
                           std::int64_t w) {
  BatchNormProblem problem;
  problem.step = step;
  problem.n = n, problem.c = c, problem.h = h, problem.w = w;
  return problem;
}

constexpr BatchNormStep kSteps[] = {BatchNormStep::kMoments, BatchNormStep::kNormalize,
                                    BatchNormStep::kGradientSums, BatchNormStep::kGradient};

TEST(BatchNorm, AgreesWithF64InEveryLayoutAndKeepsPadLanesZero) {
  for (const BatchNormStep step : kSteps) {
    for (const std::int64_t c : {1, 3, 16, 17, 40, 64, 70, 130}) {
      expect_correct("cpu.batch_norm", make_step(step, 2, c, 5, 6), 4, kBound);
    }
    expect_correct("cpu.batch_norm", make_step(step, 3, 20, 1, 1), 4, kBound);
    expect_correct("cpu.batch_norm", make_step(step, 1, 8, 1, 2), 4, kBound);
  }
}

// 71 * 73 pixels have several parts, the last of which is smaller than the others.
TEST(BatchNorm, AddsUpTheParts) {
  for (const BatchNormStep step : kSteps) {
    expect_correct("cpu.batch_norm", make_step(step, 2, 18, 71, 73), 4, kBound);
  }
}

TEST(BatchNorm, AddsAResidualAndClamps) {
  for (const Epilogue& epilogue :
       {Epilogue{PostOp::kRelu}, Epilogue{PostOp::kAdd}, Epilogue{PostOp::kAdd, PostOp::kRelu6}}) {
    BatchNormProblem problem = make_step(BatchNormStep::kNormalize, 2, 20, 9, 7);
    problem.epilogue = epilogue;
    expect_correct("cpu.batch_norm", problem, 4, kBound);
  }
}

// The gradient of the clamp behind a batch norm is a part of both gradient steps.
TEST(BatchNorm, StopsTheGradientWhereTheClampBehindItIsConstant) {
  for (const BatchNormStep step : {BatchNormStep::kGradientSums, BatchNormStep::kGradient}) {
    for (const PostOp& clamp :
         {PostOp(PostOp::kRelu), PostOp(PostOp::kRelu6), PostOp(PostOp::kClamp, {-0.5, 0.75})}) {
      for (const std::int64_t c : {3, 16, 40, 70, 130}) {
        BatchNormProblem problem = make_step(step, 2, c, 5, 6);
        problem.activation = clamp;
        expect_correct("cpu.batch_norm", problem, 4, kBound);
      }
      BatchNormProblem problem = make_step(step, 2, 18, 71, 73);
      problem.activation = clamp;
      expect_correct("cpu.batch_norm", problem, 4, kBound);
    }
  }
}

// Runs one step in nchw on given tensors.
at::Tensor run_step(const BatchNormProblem& step, const std::vector<at::Tensor>& src,
                    const Weights& weights) {
  const Algorithm algorithm = cpu_algorithm("cpu.batch_norm");
  const Primitive primitive = algorithm.offer(step, cpu_device()).primitives.at(0);
  const Kernel kernel = algorithm.prepare(step, primitive, cpu_device());
  const at::Tensor dst = empty_result(step, primitive.dst);
  const at::Tensor workspace =
      at::zeros({primitive.workspace_bytes}, at::TensorOptions().dtype(at::kByte));
  kernel.run({pack(kernel, weights), src, {}, dst, workspace.data_ptr()});
  return dst;
}

// A variance as the mean of squares less the square of the mean has no correct digit here.
TEST(BatchNorm, IsRightWhereTheMeanIsFarFromZero) {
  const at::Tensor x = at::randn({4, 5, 30, 30}) + 1e4;
  const at::Tensor found = run_step(make_step(BatchNormStep::kMoments, 4, 5, 30, 30), {x}, {});
  const at::Tensor exact = x.to(at::kDouble);
  const at::Tensor mean = exact.mean({0, 2, 3}, true);
  const at::Tensor expected = at::cat({mean, (exact - mean).pow(2).mean({0, 2, 3}, true)});
  EXPECT_TRUE(found.to(at::kDouble).allclose(expected, 1e-5, 1e-5));
}

// The formulas of the reference are ours, so the four steps together are compared with torch's own
// batch norm.
TEST(BatchNorm, TheStepsTogetherAreThoseOfTorch) {
  const at::Tensor x = at::randn({3, 7, 6, 5}) * 2 + 1, diff = at::randn({3, 7, 6, 5});
  const at::Tensor scale = at::randn({7}), shift = at::randn({7});
  const Weights weights = {{scale, shift}};
  const auto step = [](BatchNormStep kind) { return make_step(kind, 3, 7, 6, 5); };
  const at::Tensor moments = run_step(step(BatchNormStep::kMoments), {x}, {});
  const at::Tensor y = run_step(step(BatchNormStep::kNormalize), {x, moments}, weights);
  const at::Tensor sums = run_step(step(BatchNormStep::kGradientSums), {diff, x, moments}, {});
  const at::Tensor diff_x =
      run_step(step(BatchNormStep::kGradient), {diff, x, moments, sums}, weights);
  const at::Tensor f64_x = x.to(at::kDouble), f64_diff = diff.to(at::kDouble);
  const at::Tensor f64_scale = scale.to(at::kDouble), f64_shift = shift.to(at::kDouble);
  const auto [expected_y, mean, inverse] =
      at::native_batch_norm(f64_x, f64_scale, f64_shift, {}, {}, true, 0.1, 1e-5);
  const auto [expected_x, expected_scale, expected_shift] = at::native_batch_norm_backward(
      f64_diff, f64_x, f64_scale, {}, {}, mean, inverse, true, 1e-5, {true, true, true});
  const auto is_close = [](const at::Tensor& found, const at::Tensor& expected) {
    return found.to(at::kDouble).allclose(expected.view_as(found), 1e-5, 1e-5);
  };
  EXPECT_TRUE(is_close(y, expected_y));
  EXPECT_TRUE(is_close(diff_x, expected_x));
  EXPECT_TRUE(is_close(sums, at::stack({expected_shift, expected_scale})));
}

// Our steps with a clamp are compared with autograd, since the reference has our formulas too.
TEST(BatchNorm, TheGradientOfAReluBehindItIsThatOfTorch) {
  const at::Tensor x = (at::randn({3, 7, 6, 5}) * 2 + 1).set_requires_grad(true);
  const at::Tensor scale = at::randn({7}).set_requires_grad(true);
  const at::Tensor shift = at::randn({7}).set_requires_grad(true);
  const at::Tensor diff = at::randn({3, 7, 6, 5});
  const at::Tensor y =
      at::relu(at::batch_norm(x, scale, shift, {}, {}, true, 0.1, 1e-5, /*cudnn_enabled=*/false));
  const auto expected = torch::autograd::grad({y}, {x, scale, shift}, {diff});
  const at::NoGradGuard no_grad;
  const Weights weights = {{scale.detach(), shift.detach()}};
  const auto step = [](BatchNormStep kind) { return make_step(kind, 3, 7, 6, 5); };
  BatchNormProblem sums_step = step(BatchNormStep::kGradientSums);
  BatchNormProblem gradient_step = step(BatchNormStep::kGradient);
  sums_step.activation = gradient_step.activation = PostOp(PostOp::kRelu);
  const at::Tensor own = x.detach();
  const at::Tensor moments = run_step(step(BatchNormStep::kMoments), {own}, {});
  const at::Tensor sums = run_step(sums_step, {diff, own, moments}, weights);
  const at::Tensor found = run_step(gradient_step, {diff, own, moments, sums}, weights);
  EXPECT_TRUE(found.allclose(expected[0], 1e-4, 1e-5));
  EXPECT_TRUE(sums[1].flatten().allclose(expected[1], 1e-4, 1e-4));
  EXPECT_TRUE(sums[0].flatten().allclose(expected[2], 1e-4, 1e-4));
}

TEST(BatchNorm, RefusesOtherTypesAndOtherStepsBehindIt) {
  BatchNormProblem problem = make_step(BatchNormStep::kNormalize, 1, 8, 4, 4);
  problem.epilogue = {PostOp::kSilu};
  const Algorithm algorithm = cpu_algorithm("cpu.batch_norm");
  EXPECT_EQ(algorithm.offer(problem, cpu_device()).refusal,
            "needs at most an addition and then a ReLU or a clamp to follow");
  problem.epilogue.clear();
  problem.dtype = DType::kF64;
  EXPECT_EQ(algorithm.offer(problem, cpu_device()).refusal, "needs f32, got f64");
}

TEST(ChannelSums, AgreesWithF64InEveryLayout) {
  for (const std::int64_t c : {1, 17, 32, 70}) {
    for (const bool per_image : {false, true}) {
      for (const bool has_product : {false, true}) {
        ChannelSumsProblem problem{DType::kF32, 3, c, 9, 40, per_image, has_product};
        expect_correct("cpu.channel_sums", problem, 4, kBound);
      }
    }
  }
}

// 71 * 73 pixels have several parts, whose sums belong to one image or to all.
TEST(ChannelSums, AddsUpTheParts) {
  for (const bool per_image : {false, true}) {
    expect_correct("cpu.channel_sums",
                   ChannelSumsProblem{DType::kF32, 2, 18, 71, 73, per_image, true}, 4, kBound);
  }
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/erfc.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

const PostOp kActivations[] = {PostOp::kRelu,
                               PostOp::kRelu6,
                               PostOp::kHardswish,
                               PostOp::kSilu,
                               PostOp::kSigmoid,
                               PostOp::kHardsigmoid,
                               PostOp::kMish,
                               PostOp::kTanh,
                               {PostOp::kElu, {1}},
                               {PostOp::kElu, {0.3}},
                               {PostOp::kLeakyRelu, {0.1}},
                               {PostOp::kLeakyRelu, {-2}},
                               {PostOp::kClamp, {-1, 2.5}}};

struct Sizes {
  std::int64_t n, c, h, w;
};
constexpr Sizes kSizes[] = {{1, 1, 1, 1},  {2, 3, 5, 7},  {1, 16, 1, 1},
                            {2, 17, 3, 5}, {1, 64, 7, 7}, {2, 40, 1, 1}};

EltwiseProblem make_problem(EltwiseKind kind, const Sizes& sizes, Epilogue epilogue) {
  EltwiseProblem problem;
  problem.kind = kind;
  problem.n = sizes.n, problem.c = sizes.c, problem.h = sizes.h, problem.w = sizes.w;
  problem.epilogue = std::move(epilogue);
  return problem;
}

TEST(Eltwise, CombinesTwoTensorsInEveryLayout) {
  for (const Sizes& sizes : kSizes) {
    expect_correct("cpu.sub", make_problem(EltwiseKind::kSub, sizes, {}), 3, 1e-6);
    for (const bool channelwise : {false, true}) {
      EltwiseProblem add = make_problem(EltwiseKind::kAdd, sizes, {});
      EltwiseProblem mul = make_problem(EltwiseKind::kMul, sizes, {});
      add.channelwise = mul.channelwise = channelwise;
      expect_correct("cpu.add", add, 4, 1e-6);
      expect_correct("cpu.mul", mul, 4, 1e-6);
    }
  }
}

void expect_correct_with(const PostOp& activation, const Sizes& sizes) {
  expect_correct("cpu.activation", make_problem(EltwiseKind::kActivation, sizes, {activation}), 4,
                 1e-6);
  expect_correct("cpu.sub", make_problem(EltwiseKind::kSub, sizes, {activation}), 3, 1e-6);
  for (const bool channelwise : {false, true}) {
    EltwiseProblem add = make_problem(EltwiseKind::kAdd, sizes, {activation});
    EltwiseProblem mul = make_problem(EltwiseKind::kMul, sizes, {activation});
    add.channelwise = mul.channelwise = channelwise;
    expect_correct("cpu.add", add, 4, 1e-6);
    expect_correct("cpu.mul", mul, 4, 1e-6);
  }
}

TEST(Eltwise, AppliesEachActivationAndKeepsPadLanesZero) {
  for (const auto& [kind, name] : kPostOps) {
    if (!is_activation(kind)) continue;
    const PostOp post_op(kind, {-0.25, 0.5});  // most kinds do not read the numbers
    expect_correct_with(post_op, {2, 17, 3, 5});
    expect_correct_with(post_op, {1, 16, 9, 1});
  }
}

// By formulas in which nothing cancels; torch's 1 + erf(x) does where x is small.
at::Tensor exact_gelu(PostOp op, const at::Tensor& x) {
  if (op == PostOp::kGelu) return x * 0.5 * at::erfc(x * -std::sqrt(0.5));
  return x * at::sigmoid((x + x * x * x * 0.044715) * std::sqrt(8 / std::acos(-1.0)));
}

TEST(Eltwise, IsAsExactAsItSaysAtEveryValueOfGelu) {
  for (const PostOp op : {PostOp::kGelu, PostOp::kGeluTanh}) {
    const Problem problem = make_problem(EltwiseKind::kActivation, {1, 1, 1, 24'001}, {op});
    Sample sample = make_sample(problem, 1);
    at::Tensor& src = sample.src[0];
    src.copy_(at::linspace(-12, 12, src.numel(), at::kDouble).to(at::kFloat).view_as(src));
    src.view(-1)[0] = std::numeric_limits<double>::quiet_NaN();
    src.view(-1)[1] = std::numeric_limits<double>::infinity();
    const at::Tensor x = src.view(-1).to(at::kDouble);
    const at::Tensor expected = exact_gelu(op, x);
    for (const std::string& isa : isas()) {
      const Algorithm row = cpu_algorithm("cpu.activation", isa);
      const Primitive primitive = row.offer(problem, cpu_device()).primitives.front();
      const at::Tensor result = run_once(row, problem, primitive, sample).view(-1).to(at::kDouble);
      EXPECT_TRUE(result[0].isnan().item<bool>()) << isa << " " << to_string(problem);
      EXPECT_TRUE(result[1].isinf().item<bool>()) << isa << " " << to_string(problem);
      // The rounding of y in e^-y counts y times, and y grows with x^2, for gelu_tanh with x^3.
      const at::Tensor y = op == PostOp::kGelu ? x * x : x.abs() * (2 + 0.15 * x * x);
      const at::Tensor bound = expected.abs() * (y + 6) * 1e-7 + 1e-36;
      const at::Tensor excess = result.sub(expected).abs().div(bound).narrow(0, 2, x.numel() - 2);
      EXPECT_LT(excess.max().item<double>(), 1) << isa << " " << to_string(problem);
    }
  }
}

// Element by element, unlike the norm that the other tests bound.
TEST(Eltwise, IsAsExactAsF32AtEveryValueOfAnActivationAndKeepsNan) {
  const Problem plain = make_problem(EltwiseKind::kActivation, {1, 1, 1, 4008}, {});
  Sample sample = make_sample(plain, 1);
  at::Tensor& src = sample.src[0];
  src.copy_(at::linspace(-100, 100, src.numel(), at::kDouble).to(at::kFloat).view_as(src));
  src.view(-1)[0] = std::numeric_limits<double>::quiet_NaN();
  for (const PostOp& activation : kActivations) {
    EltwiseProblem eltwise = std::get<EltwiseProblem>(plain);
    eltwise.epilogue = {activation};
    const Problem problem = eltwise;
    const at::Tensor expected = reference_result(problem, sample).view(-1);
    for (const std::string& isa : isas()) {
      const Algorithm row = cpu_algorithm("cpu.activation", isa);
      const Primitive primitive = row.offer(problem, cpu_device()).primitives.front();
      const at::Tensor result = run_once(row, problem, primitive, sample).view(-1).to(at::kDouble);
      EXPECT_TRUE(result[0].isnan().item<bool>()) << isa << " " << to_string(problem);
      // The rounding of x in e^-x counts x times; such results are next to 0 or 1.
      const at::Tensor bound = src.view(-1).abs().to(at::kDouble).mul(1e-7).add(3e-7);
      const at::Tensor error = result.sub(expected).abs().sub(expected.abs().mul(bound));
      EXPECT_LT(error.narrow(0, 1, error.numel() - 1).max().item<double>(), 1e-30)
          << isa << " " << to_string(problem);
    }
  }
}

// e^x - 1 and 1 - e^x lose all digits next to 0 if they are computed as a difference.
TEST(Eltwise, IsAsExactAsF32NextToZero) {
  const Problem plain = make_problem(EltwiseKind::kActivation, {1, 1, 1, 24'000}, {});
  Sample sample = make_sample(plain, 1);
  const at::Tensor src = sample.src[0].view({2, -1});
  src.copy_(at::pow(10, at::linspace(-30, 0.5, src.size(1), at::kDouble)));
  src[1].neg_();
  const PostOp subjects[] = {PostOp::kMish, PostOp::kTanh, {PostOp::kElu, {1}}};
  for (const PostOp& activation : subjects) {
    EltwiseProblem eltwise = std::get<EltwiseProblem>(plain);
    eltwise.epilogue = {activation};
    const Problem problem = eltwise;
    const at::Tensor expected = reference_result(problem, sample).view(-1);
    for (const std::string& isa : isas()) {
      const Algorithm row = cpu_algorithm("cpu.activation", isa);
      const Primitive primitive = row.offer(problem, cpu_device()).primitives.front();
      const at::Tensor result = run_once(row, problem, primitive, sample).view(-1).to(at::kDouble);
      const at::Tensor relative = result.sub(expected).div(expected).abs();
      EXPECT_LT(relative.max().item<double>(), 6e-7) << isa << " " << to_string(problem);
    }
  }
}

TEST(Eltwise, MakesOfInfinitiesWhatTorchMakes) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const PostOp& activation : kActivations) {
    for (const double value : {kInfinity, -kInfinity}) {
      const Problem problem = make_problem(EltwiseKind::kActivation, {1, 1, 1, 40}, {activation});
      Sample sample = make_sample(problem, 1);
      sample.src[0].fill_(value);
      const at::Tensor expected = reference_result(problem, sample).view(-1);
      // x times a function that is 0 at -infinity is a NaN in torch. The kernels may give the
      // limit.
      if (expected[0].isnan().item<bool>()) continue;
      const Algorithm row = cpu_algorithm("cpu.activation");
      const Primitive primitive = row.offer(problem, cpu_device()).primitives.front();
      const at::Tensor result = run_once(row, problem, primitive, sample).view(-1).to(at::kDouble);
      EXPECT_TRUE(result.allclose(expected, 1e-7, 1e-30)) << value << " " << to_string(problem);
    }
  }
}

TEST(Eltwise, IsRightWhenSeveralThreadsShareIt) {
  expect_correct_with(PostOp::kSigmoid, {1, 33, 40, 41});
}

TEST(Eltwise, RefusesOtherKindsTypesAndLongerEpilogues) {
  const Sizes sizes = {1, 16, 4, 4};
  const EltwiseProblem add = make_problem(EltwiseKind::kAdd, sizes, {});
  EXPECT_EQ(cpu_algorithm("cpu.mul").offer(add, cpu_device()).refusal,
            "needs a product of two tensors");
  EXPECT_EQ(cpu_algorithm("cpu.activation").offer(add, cpu_device()).refusal,
            "needs an activation");
  EXPECT_EQ(cpu_algorithm("cpu.add").offer(ConvProblem(), cpu_device()).refusal,
            "needs an addition of two tensors");
  EltwiseProblem half = add;
  half.dtype = DType::kF16;
  EXPECT_EQ(cpu_algorithm("cpu.add").offer(half, cpu_device()).refusal, "needs f32, got f16");
  EXPECT_EQ(cpu_algorithm("cpu.add")
                .offer(make_problem(EltwiseKind::kAdd, sizes, {PostOp::kAdd, PostOp::kRelu}),
                       cpu_device())
                .refusal,
            "needs at most one activation to follow");
}

TEST(ActivationGradient, AgreesWithF64InEveryLayout) {
  for (const auto& [kind, name] : kPostOps) {
    if (!is_activation(kind)) continue;
    const PostOp activation(kind, {-0.25, 0.5});  // most kinds do not read the numbers
    for (const std::int64_t c : {1, 16, 21}) {
      expect_correct("cpu.bwd_activation",
                     ActivationGradientProblem{activation, DType::kF32, 2, c, 7, 9}, 4, 1e-6);
    }
  }
}

// Returns a sample of the gradient at `x`, with ones as the gradient of the result.
Sample gradient_sample(const Problem& problem, const at::Tensor& x) {
  Sample sample = make_sample(problem, 1);
  sample.src[0].fill_(1);
  sample.src[1].copy_(x.view_as(sample.src[1]));
  return sample;
}

ActivationGradientProblem gradient_at(const PostOp& activation, const at::Tensor& x) {
  return {activation, DType::kF32, 1, 1, 1, x.numel()};
}

// Element by element, unlike the norm that the other tests bound. The grid has no kink but 0.
TEST(ActivationGradient, IsAsExactAsF32AtEveryValue) {
  const at::Tensor x = at::linspace(-100, 100, 24'001, at::kDouble).to(at::kFloat);
  for (const auto& [kind, name] : kPostOps) {
    if (!is_activation(kind)) continue;
    const Problem problem = gradient_at(PostOp(kind, {-0.25, 0.75}), x);
    const Sample sample = gradient_sample(problem, x);
    const at::Tensor expected = reference_result(problem, sample).view(-1);
    for (const std::string& isa : isas()) {
      const Algorithm row = cpu_algorithm("cpu.bwd_activation", isa);
      const Primitive primitive = row.offer(problem, cpu_device()).primitives.front();
      const at::Tensor result = run_once(row, problem, primitive, sample).view(-1).to(at::kDouble);
      // Derivatives are sums of numbers up to about 1, which cancel where they are close to 0.
      EXPECT_LT(result.sub(expected).abs().max().item<double>(), 1e-6)
          << isa << " " << to_string(problem);
    }
  }
}

// Torch defines the derivatives at kinks, at infinities and of NaNs.
TEST(ActivationGradient, IsThatOfTorchAtKinksAndInfinities) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> values = {-3, -0.25, -0.0, 0, 0.75, 3, 6, 1e30, -1e30, kInfinity, -kInfinity};
  values.push_back(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor x = at::tensor(values, at::kFloat);
  for (const auto& [kind, name] : kPostOps) {
    if (!is_activation(kind)) continue;
    const Problem problem = gradient_at(PostOp(kind, {-0.25, 0.75}), x);
    const Sample sample = gradient_sample(problem, x);
    const at::Tensor expected = reference_result(problem, sample).view(-1);
    for (const std::string& isa : isas()) {
      const Algorithm row = cpu_algorithm("cpu.bwd_activation", isa);
      const Primitive primitive = row.offer(problem, cpu_device()).primitives.front();
      const at::Tensor result = run_once(row, problem, primitive, sample).view(-1).to(at::kDouble);
      // The limit may stand for a NaN at an infinity. ELU keeps a NaN, while torch does so or not.
      const at::Tensor is_limit = expected.isnan().logical_and(x.isinf());
      const at::Tensor is_kept = result.isnan().logical_and(x.isnan());
      const at::Tensor is_equal = result.isclose(expected, 1e-6, 1e-6, /*equal_nan=*/true);
      EXPECT_TRUE(is_equal.logical_or(is_limit).logical_or(is_kept).all().item<bool>())
          << isa << " " << to_string(problem) << "\n"
          << result << "\n"
          << expected;
    }
  }
}

TEST(ActivationGradient, RefusesOtherProblems) {
  const Problem silu = make_problem(EltwiseKind::kActivation, {1, 16, 4, 4}, {PostOp::kSilu});
  EXPECT_EQ(cpu_algorithm("cpu.bwd_activation").offer(silu, cpu_device()).refusal,
            "needs the gradient of an activation");
}

}  // namespace
}  // namespace torchalgo

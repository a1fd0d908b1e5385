// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

constexpr double kBound = 2e-6;

GroupNormProblem make_norm(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w,
                           std::int64_t groups) {
  GroupNormProblem norm;
  norm.n = n, norm.c = c, norm.h = h, norm.w = w, norm.groups = groups;
  return norm;
}

TEST(GroupNorm, AgreesWithF64InEveryLayoutAndKeepsPadLanesZero) {
  for (const auto& [c, groups] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {2, 1}, {3, 3}, {16, 4}, {17, 17}, {40, 5}, {64, 32}, {96, 1}, {100, 10}}) {
    for (const std::int64_t size : {2, 5}) {
      expect_correct("cpu.group_norm", make_norm(2, c, size, size + 1, groups), 3, kBound);
    }
  }
}

TEST(GroupNorm, IsRightForOnePixel) {
  expect_correct("cpu.group_norm", make_norm(3, 40, 1, 1, 4), 3, kBound);
}

TEST(GroupNorm, IsRightWhenSeveralThreadsShareIt) {
  for (const std::int64_t groups : {1, 72}) {
    expect_correct("cpu.group_norm", make_norm(1, 72, 33, 31, groups), 3, kBound);
  }
}

// A column of 50 * 50 pixels has several parts, and the last part is smaller than the others.
TEST(GroupNorm, AddsUpTheParts) {
  for (const std::int64_t groups : {1, 2, 10}) {
    expect_correct("cpu.group_norm", make_norm(1, 10, 50, 51, groups), 3, kBound);
  }
}

TEST(GroupNorm, AppliesAnActivation) {
  for (const PostOp activation : {PostOp::kRelu, PostOp::kSilu, PostOp::kSigmoid}) {
    GroupNormProblem norm = make_norm(2, 20, 9, 7, 5);
    norm.epilogue = {activation};
    expect_correct("cpu.group_norm", norm, 3, kBound);
  }
}

// A variance as the mean of squares less the square of the mean has no correct digit here. The
// first pixels differ from all others, so that the pivots are far from the means.
TEST(GroupNorm, IsRightWhereTheMeanIsFarFromZero) {
  GroupNormProblem norm = make_norm(1, 40, 40, 40, 4);
  norm.epsilon = 0;
  at::Tensor src = at::randn({1, 40, 40, 40}) + 1e4;
  src.narrow(2, 0, 2).add_(20);
  const at::Tensor expected = at::group_norm(src.to(at::kDouble), 4, {}, {}, 0);
  const Weights weights = {{at::ones({40}), at::zeros({40})}};
  for (const std::string& isa : isas()) {
    const Algorithm algorithm = cpu_algorithm("cpu.group_norm", isa);
    for (const Primitive& primitive : algorithm.offer(norm, cpu_device()).primitives) {
      const Kernel kernel = algorithm.prepare(norm, primitive, cpu_device());
      const at::Tensor given = to_layout(src, primitive.src);
      const at::Tensor dst = empty_result(norm, primitive.dst);
      const at::Tensor workspace =
          at::zeros({primitive.workspace_bytes}, at::TensorOptions().dtype(at::kByte));
      kernel.run({pack(kernel, weights), {&given, 1}, {}, dst, workspace.data_ptr()});
      const at::Tensor found = from_layout(dst, primitive.dst, result_sizes(norm)).to(at::kDouble);
      EXPECT_TRUE(found.allclose(expected, 1e-5, 1e-5)) << to_string(primitive) << " " << isa;
    }
  }
}

TEST(GroupNorm, RefusesOtherTypesAndOtherStepsBehindIt) {
  GroupNormProblem norm = make_norm(1, 4, 2, 2, 2);
  const Algorithm algorithm = cpu_algorithm("cpu.group_norm");
  norm.epilogue = {PostOp::kAdd};
  EXPECT_EQ(algorithm.offer(norm, cpu_device()).refusal, "needs at most one activation to follow");
  norm.epilogue = {};
  norm.dtype = DType::kF64;
  EXPECT_EQ(algorithm.offer(norm, cpu_device()).refusal, "needs f32, got f64");
}

}  // namespace
}  // namespace torchalgo

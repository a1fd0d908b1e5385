// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/std.h>
#include <ATen/ops/zeros.h>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

constexpr LayerNormKind kKinds[] = {LayerNormKind::kLayer, LayerNormKind::kRms,
                                    LayerNormKind::kVariance};

LayerNormProblem make_norm(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  LayerNormProblem norm;
  norm.n = n, norm.c = c, norm.h = h, norm.w = w;
  return norm;
}

TEST(LayerNorm, AgreesWithF64InEveryLayoutAndKeepsPadLanesZero) {
  for (const LayerNormKind kind : kKinds) {
    for (const std::int64_t c : {2, 3, 16, 17, 40, 96, 100}) {
      for (const std::int64_t size : {1, 5}) {
        LayerNormProblem norm = make_norm(2, c, size, size + 1);
        norm.kind = kind;
        expect_correct("cpu.layer_norm", norm, 3, 2e-6);
      }
    }
  }
}

TEST(LayerNorm, IsRightWhenSeveralThreadsShareIt) {
  expect_correct("cpu.layer_norm", make_norm(2, 41, 29, 31), 3, 2e-6);
}

// Expects that every kernel computes `expected` of `src` with a scale of 1 and a shift of 0, to a
// relative error of 1e-5.
void expect_normalized(const LayerNormProblem& norm, const at::Tensor& src,
                       const at::Tensor& expected) {
  const Weights weights = {{at::ones({norm.c}), at::zeros({norm.c})}};
  for (const std::string& isa : isas()) {
    const Algorithm algorithm = cpu_algorithm("cpu.layer_norm", isa);
    for (const Primitive& primitive : algorithm.offer(norm, cpu_device()).primitives) {
      const Kernel kernel = algorithm.prepare(norm, primitive, cpu_device());
      const at::Tensor given = to_layout(src, primitive.src);
      const at::Tensor dst = empty_result(norm, primitive.dst);
      kernel.run({pack(kernel, weights), {&given, 1}, {}, dst, nullptr});
      const at::Tensor found = from_layout(dst, primitive.dst, result_sizes(norm)).to(at::kDouble);
      EXPECT_TRUE(found.allclose(expected, 1e-5, 1e-5)) << to_string(primitive) << " " << isa;
    }
  }
}

// A variance as the mean of squares less the square of the mean has no correct digit here.
TEST(LayerNorm, IsRightWhereTheMeanIsFarFromZero) {
  LayerNormProblem norm = make_norm(1, 40, 3, 7);
  norm.epsilon = 0;
  const at::Tensor src = at::randn({1, 40, 3, 7}) + 1e4;
  const at::Tensor wide = src.to(at::kDouble);
  const at::Tensor deviation = at::std(wide, 1, /*unbiased=*/false, /*keepdim=*/true);
  expect_normalized(norm, src, (wide - wide.mean(1, true)) / deviation);
  norm.kind = LayerNormKind::kRms;
  expect_normalized(norm, src, wide / wide.square().mean(1, true).sqrt());
  norm.kind = LayerNormKind::kVariance;
  expect_normalized(norm, src, wide / at::std(wide, 1, /*unbiased=*/true, /*keepdim=*/true));
}

TEST(LayerNorm, RefusesOtherTypes) {
  LayerNormProblem norm = make_norm(1, 4, 2, 2);
  norm.dtype = DType::kF64;
  const Algorithm algorithm = cpu_algorithm("cpu.layer_norm");
  EXPECT_EQ(algorithm.offer(norm, cpu_device()).refusal, "needs f32, got f64");
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include "cpu_algo_without_torch/plain.h"

namespace torchalgo::cpu {
namespace {

std::vector<float> numbers(std::int64_t count, float low, float high) {
  static std::mt19937 engine;
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = uniform(engine);
  return values;
}

// By plain loops on nchw, in double.
std::vector<double> normalized(const LayerNormProblem& norm, const std::vector<float>& src,
                               const std::vector<float>& scale, const std::vector<float>& shift) {
  const std::int64_t pixels = norm.h * norm.w;
  std::vector<double> dst(src.size());
  for (std::int64_t i = 0; i < norm.n * pixels; ++i) {
    const std::int64_t first = i / pixels * norm.c * pixels + i % pixels;
    const auto channels = static_cast<double>(norm.c);
    double mean = 0, variance = 0, square = 0;
    for (std::int64_t c = 0; c < norm.c; ++c) mean += src[first + c * pixels] / channels;
    for (std::int64_t c = 0; c < norm.c; ++c) {
      variance += std::pow(src[first + c * pixels] - mean, 2) / channels;
      square += std::pow(src[first + c * pixels], 2) / channels;
    }
    const double spread = norm.kind == LayerNormKind::kLayer ? variance
                          : norm.kind == LayerNormKind::kRms ? square
                                                             : variance * channels / (channels - 1);
    const double center = norm.kind == LayerNormKind::kLayer ? mean : 0;
    for (std::int64_t c = 0; c < norm.c; ++c) {
      dst[first + c * pixels] =
          (src[first + c * pixels] - center) / std::sqrt(spread + norm.epsilon) * scale[c] +
          shift[c];
    }
  }
  return dst;
}

TEST(WithoutTorchLayerNorm, AgreesWithPlainLoopsInEveryLayoutAndBuild) {
  for (const char* const text :
       {"layernorm_f32_n2c17h3w5_eps1e-06", "layernorm_f32_n1c96h7w7_eps1e-05",
        "rmsnorm_f32_n2c17h3w5_eps1e-06", "variancenorm_f32_n1c96h7w7_eps1e-05"}) {
    const auto norm = std::get<LayerNormProblem>(parse_problem(text));
    const std::int64_t pixels = norm.h * norm.w;
    const auto src = numbers(norm.n * norm.c * pixels, 2, 5);
    const auto scale = numbers(norm.c, -1, 1), shift = numbers(norm.c, -1, 1);
    const std::vector<double> expected = normalized(norm, src, scale, shift);
    for (const Bound& bound : all_bound(norm)) {
      const Layout layout = bound.primitive.src;
      Floats given = in_layout(src, layout, norm.n, norm.c, pixels);
      Floats dst(element_count(layout, norm.n, norm.c, pixels));
      run_plain(bound.kernel, {given.data()}, {scale.data(), shift.data()}, dst);
      expect_near(dst, expected, layout, norm.c, pixels, bound.what);
    }
  }
}

}  // namespace
}  // namespace torchalgo::cpu

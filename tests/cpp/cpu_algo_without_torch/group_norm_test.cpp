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

// Computes the result with plain loops on nchw, in double.
std::vector<double> normalized(const GroupNormProblem& norm, const std::vector<float>& src,
                               const std::vector<float>& scale, const std::vector<float>& shift) {
  const std::int64_t pixels = norm.h * norm.w, count = norm.c / norm.groups * pixels;
  std::vector<double> dst(src.size());
  for (std::int64_t group = 0; group < norm.n * norm.groups; ++group) {
    const float* const from = src.data() + group * count;
    double mean = 0, variance = 0;
    for (std::int64_t i = 0; i < count; ++i) mean += from[i] / static_cast<double>(count);
    for (std::int64_t i = 0; i < count; ++i)
      variance += std::pow(from[i] - mean, 2) / static_cast<double>(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t channel = (group * count + i) / pixels % norm.c;
      dst[group * count + i] =
          (from[i] - mean) / std::sqrt(variance + norm.epsilon) * scale[channel] + shift[channel];
    }
  }
  return dst;
}

TEST(WithoutTorchGroupNorm, AgreesWithPlainLoopsInEveryLayoutAndBuild) {
  for (const char* const text :
       {"groupnorm_f32_n2c18h3w5_g3_eps1e-06", "groupnorm_f32_n1c96h7w7_g1_eps1e-05",
        "groupnorm_f32_n2c17h19w20_g17_eps0.001"}) {
    const auto norm = std::get<GroupNormProblem>(parse_problem(text));
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

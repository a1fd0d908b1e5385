// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Bias, residual and activation as kernels apply them. For sources of this folder only: everything
// is in an anonymous namespace, because each of the three builds needs its own copy (isa.h).

#include <ATen/cpu/vec/vec.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "cpu_algo/kernels/activation.h"

namespace torchalgo::kernels {
namespace {

using Vec = at::vec::Vectorized<float>;
constexpr int kLanes = Vec::size();             // 16 with AVX-512, else 8
constexpr int kBlock = 16;                      // channels of an nChw16c block
constexpr int kBlockVectors = kBlock / kLanes;  // vectors that hold one block

/// The clamp that kNone, kRelu and kRelu6 are; a NaN stays a NaN, as in torch.
struct Clamp {
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
};
constexpr Clamp clamp_of(Activation activation) {
  Clamp clamp;
  if (activation == Activation::kRelu || activation == Activation::kRelu6) clamp.low = 0;
  if (activation == Activation::kRelu6) clamp.high = 6;
  return clamp;
}
inline Vec apply_clamp(Vec x, Vec low, Vec high) {
  return at::vec::clamp_max(at::vec::clamp_min(x, low), high);
}

/// e^x to about 1e-7, saturated outside of [-87, 88]; branch-free, so loops over it vectorise.
/// 2^n e^f with |f| <= ln 2 / 2; coefficients of the degree-6 Taylor polynomial.
inline float fast_exp(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: the sum's low bits are the nearest integer
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float f = (x - n * 0.693359375F) + n * 2.12194440e-4F;  // ln 2 in two parts
  float p = 1.0F / 720;
  p = p * f + 1.0F / 120;
  p = p * f + 1.0F / 24;
  p = p * f + 1.0F / 6;
  p = p * f + 0.5F;
  p = p * f + 1.0F;
  p = p * f + 1.0F;
  const auto bits = (std::bit_cast<std::uint32_t>(shifted) + 127U) << 23;
  return p * std::bit_cast<float>(bits);
}

template <Activation activation>
inline float activate(float x) {
  const auto clamp = [](float v, float low, float high) {
    v = v < low ? low : v;
    return v > high ? high : v;
  };
  if constexpr (activation == Activation::kRelu) return x < 0 ? 0.0F : x;
  if constexpr (activation == Activation::kRelu6) return clamp(x, 0, 6);
  if constexpr (activation == Activation::kHardswish) return x * clamp(x + 3, 0, 6) * (1.0F / 6);
  if constexpr (activation == Activation::kSilu) return x / (1 + fast_exp(-x));
  if constexpr (activation == Activation::kSigmoid) return 1 / (1 + fast_exp(-x));
  if constexpr (activation == Activation::kHardsigmoid) return clamp(x + 3, 0, 6) * (1.0F / 6);
  return x;
}

template <Activation activation>
inline void activate_range(const float* src, float* dst, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) dst[i] = activate<activation>(src[i]);
}

/// dst[i] = activation(src[i]); src may be dst, otherwise they do not overlap.
inline void activate(const float* src, float* dst, std::int64_t count, Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return activate_range<Activation::kNone>(src, dst, count);
    case Activation::kRelu:
      return activate_range<Activation::kRelu>(src, dst, count);
    case Activation::kRelu6:
      return activate_range<Activation::kRelu6>(src, dst, count);
    case Activation::kHardswish:
      return activate_range<Activation::kHardswish>(src, dst, count);
    case Activation::kSilu:
      return activate_range<Activation::kSilu>(src, dst, count);
    case Activation::kSigmoid:
      return activate_range<Activation::kSigmoid>(src, dst, count);
    case Activation::kHardsigmoid:
      return activate_range<Activation::kHardsigmoid>(src, dst, count);
  }
}

}  // namespace
}  // namespace torchalgo::kernels

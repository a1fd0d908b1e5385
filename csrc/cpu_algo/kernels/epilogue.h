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

/// e^x to about 2e-7, saturated outside of [-87, 88]; a NaN stays a NaN.
/// 2^n e^f with |f| <= ln 2 / 2; the minimax polynomial of degree 5 that is 1 at 0.
inline Vec fast_exp(Vec x) {
  using at::vec::fmadd;
  x = apply_clamp(x, Vec(-87.0F), Vec(88.0F));
  // The sum's low bits are the nearest integer n, as the exponent of 2^n wants it: plus 127.
  constexpr float kRound = 12582912.0F + 127.0F;  // 1.5 * 2^23 + 127
  const Vec shifted = fmadd(x, Vec(1.44269504F), Vec(kRound));
  const Vec n = shifted - Vec(kRound);
  const Vec f =
      fmadd(n, Vec(2.12194440e-4F), fmadd(n, Vec(-0.693359375F), x));  // ln 2 in two parts
  Vec p = fmadd(f, Vec(0.00829031474F), Vec(0.0418979295F));
  p = fmadd(p, f, Vec(0.166676362F));
  p = fmadd(p, f, Vec(0.499991495F));
  p = fmadd(p, f, Vec(0.999999707F));
  p = fmadd(p, f, Vec(1.0F));
  using Bits = at::vec::Vectorized<std::int32_t>;
  return p * std::bit_cast<Vec>(std::bit_cast<Bits>(shifted) << Bits(23));
}

/// By vectors: of the scalar formulas GCC may take both branches of a clamp, a division in each.
template <Activation activation>
inline Vec activate(Vec x) {
  const Vec zero(0.0F), one(1.0F), three(3.0F), six(6.0F), sixth(1.0F / 6);
  if constexpr (is_clamp(activation)) {
    constexpr Clamp kClamp = clamp_of(activation);
    return apply_clamp(x, Vec(kClamp.low), Vec(kClamp.high));
  }
  if constexpr (activation == Activation::kHardswish)
    return x * apply_clamp(x + three, zero, six) * sixth;
  if constexpr (activation == Activation::kSilu) return x / (one + fast_exp(zero - x));
  if constexpr (activation == Activation::kSigmoid) return one / (one + fast_exp(zero - x));
  if constexpr (activation == Activation::kHardsigmoid)
    return apply_clamp(x + three, zero, six) * sixth;
  return x;
}

template <Activation activation>
inline void activate_range(const float* src, float* dst, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) activate<activation>(Vec::loadu(src + i)).store(dst + i);
  if (i == count) return;
  const int rest = static_cast<int>(count - i);
  activate<activation>(Vec::loadu(src + i, rest)).store(dst + i, rest);
}

/// The same in place for `vectors` vectors, each `step` floats behind the one before.
template <Activation activation>
inline void activate_vectors(float* data, std::int64_t step, int vectors) {
  for (int i = 0; i < vectors; ++i) {
    activate<activation>(Vec::loadu(data + i * step)).store(data + i * step);
  }
}

/// Calls function.operator()<activation>().
template <class Function>
inline void with_activation(Activation activation, const Function& function) {
  switch (activation) {
    case Activation::kNone:
      return function.template operator()<Activation::kNone>();
    case Activation::kRelu:
      return function.template operator()<Activation::kRelu>();
    case Activation::kRelu6:
      return function.template operator()<Activation::kRelu6>();
    case Activation::kHardswish:
      return function.template operator()<Activation::kHardswish>();
    case Activation::kSilu:
      return function.template operator()<Activation::kSilu>();
    case Activation::kSigmoid:
      return function.template operator()<Activation::kSigmoid>();
    case Activation::kHardsigmoid:
      return function.template operator()<Activation::kHardsigmoid>();
  }
}

/// dst[i] = activation(src[i]); src may be dst, otherwise they do not overlap.
inline void activate(const float* src, float* dst, std::int64_t count, Activation activation) {
  with_activation(activation, [&]<Activation known>() { activate_range<known>(src, dst, count); });
}

}  // namespace
}  // namespace torchalgo::kernels

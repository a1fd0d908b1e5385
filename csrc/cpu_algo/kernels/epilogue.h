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

/// at::vec's vectors without an instruction set are arrays, which GCC vectorises far worse than a
/// loop over floats.
#if defined(CPU_CAPABILITY_DEFAULT)
constexpr bool kHasVectors = false;
#else
constexpr bool kHasVectors = true;
#endif

/// Whether a kernel applies an activation to its sums in registers. It is unrolled once for each of
/// every tile, so a longer one runs over what was stored, which lies in L1.
constexpr bool fits_registers(Activation activation) {
  return is_clamp(activation) || (kHasVectors && activation == Activation::kHardswish);
}

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
inline Vec apply_clamp(const Vec& x, const Vec& low, const Vec& high) {
  return at::vec::clamp_max(at::vec::clamp_min(x, low), high);
}

inline float apply_clamp(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// By reference: of vectors that are passed by value, GCC 12 keeps arrays in memory.
inline Vec multiply_add(const Vec& a, const Vec& b, const Vec& c) {
  return at::vec::fmadd(a, b, c);
}
inline float multiply_add(float a, float b, float c) { return a * b + c; }

#if defined(CPU_CAPABILITY_AVX512)

/// e^-x to (2 + |x|) 1e-7 of itself: 0 or infinity where it is none of f32's normal numbers, a
/// NaN of a NaN. 2^-n 2^f with |f| <= 1 / 2; the minimax polynomial of degree 5 that is 1 at 0.
inline Vec exp_minus(Vec x) {
  const __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504F));
  const Vec f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEAREST_INT);  // 0 of an infinity
  Vec p = multiply_add(f, Vec(0.00132029818F), Vec(0.00967495237F));
  p = multiply_add(p, f, Vec(0.0555104725F));
  p = multiply_add(p, f, Vec(0.240221664F));
  p = multiply_add(p, f, Vec(0.693146586F));
  p = multiply_add(p, f, Vec(1.0F));
  return _mm512_scalef_ps(p, _mm512_sub_ps(t, f));
}

#else

/// 2^(n - 127) of the integer n in the low bits.
inline Vec power_of_two(Vec x) {
  using Bits = at::vec::Vectorized<std::int32_t>;
  return std::bit_cast<Vec>(std::bit_cast<Bits>(x) << Bits(23));
}
inline float power_of_two(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) << 23);
}

/// e^-x to about 2e-7, saturated outside of [-88, 87]; a NaN stays a NaN. T: Vec or float.
/// 2^n e^-f with |f| <= ln 2 / 2; the minimax polynomial of degree 5 that is 1 at 0.
template <class T>
inline T exp_minus(T x) {
  x = apply_clamp(x, T(-88.0F), T(87.0F));
  // The sum's low bits are the nearest integer n, as the exponent of 2^n wants it: plus 127.
  constexpr float kRound = 12582912.0F + 127.0F;  // 1.5 * 2^23 + 127
  const T shifted = multiply_add(x, T(-1.44269504F), T(kRound));
  const T n = shifted - T(kRound);
  const T high = multiply_add(n, T(0.693359375F), x);  // ln 2 in two parts
  const T f = multiply_add(n, T(-2.12194440e-4F), high);
  T p = multiply_add(f, T(-0.00829031474F), T(0.0418979295F));
  p = multiply_add(p, f, T(-0.166676362F));
  p = multiply_add(p, f, T(0.499991495F));
  p = multiply_add(p, f, T(-0.999999707F));
  p = multiply_add(p, f, T(1.0F));
  return p * power_of_two(shifted);
}

#endif

/// T: Vec, because GCC may take both branches of a clamp in its own vectors of the scalar formulas,
/// with a division in each; float where there are no vectors.
template <Activation activation, class T>
inline T activate(T x) {
  const T zero(0.0F), one(1.0F), three(3.0F), six(6.0F), sixth(1.0F / 6);
  if constexpr (is_clamp(activation)) {
    constexpr Clamp kClamp = clamp_of(activation);
    return apply_clamp(x, T(kClamp.low), T(kClamp.high));
  }
  if constexpr (activation == Activation::kHardswish)
    return x * apply_clamp(x + three, zero, six) * sixth;
  if constexpr (activation == Activation::kSilu) return x / (one + exp_minus(x));
  if constexpr (activation == Activation::kSigmoid) return one / (one + exp_minus(x));
  if constexpr (activation == Activation::kHardsigmoid)
    return apply_clamp(x + three, zero, six) * sixth;
  return x;
}

template <Activation activation>
inline void activate_range(const float* src, float* dst, std::int64_t count) {
  std::int64_t i = 0;
  if constexpr (!kHasVectors) {
    for (; i < count; ++i) dst[i] = activate<activation>(src[i]);
  }
  for (; i + kLanes <= count; i += kLanes) activate<activation>(Vec::loadu(src + i)).store(dst + i);
  if (i == count) return;
  const int rest = static_cast<int>(count - i);
  activate<activation>(Vec::loadu(src + i, rest)).store(dst + i, rest);
}

/// The same in place for `vectors` vectors, each `step` floats behind the one before.
template <Activation activation>
inline void activate_vectors(float* data, std::int64_t step, int vectors) {
  for (int i = 0; i < vectors; ++i) {
    float* const at = data + i * step;
    if constexpr (kHasVectors) {
      activate<activation>(Vec::loadu(at)).store(at);
    } else {
      for (int lane = 0; lane < kLanes; ++lane) at[lane] = activate<activation>(at[lane]);
    }
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

/// Zeros in the lanes from `channels` on of `pixels` blocks, each `step` floats behind the one
/// before.
inline void clear_lanes(float* block, std::int64_t step, std::int64_t pixels,
                        std::int64_t channels) {
  for (std::int64_t i = 0; i < pixels; ++i, block += step) {
    for (std::int64_t lane = channels; lane < kBlock; ++lane) block[lane] = 0;
  }
}

/// dst[i] = activation(src[i]); src may be dst, otherwise they do not overlap.
inline void activate(const float* src, float* dst, std::int64_t count, Activation activation) {
  with_activation(activation, [&]<Activation known>() { activate_range<known>(src, dst, count); });
}

}  // namespace
}  // namespace torchalgo::kernels

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Bias, residual and activation as kernels apply them. Only sources of this folder may include it:
// everything is in an anonymous namespace, because each of the three builds needs its own copy
// (isa.h).

#include <cstdint>
#include <limits>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels {
namespace {

constexpr int kBlock = 16;                      // channels of an nChw16c block
constexpr int kBlockVectors = kBlock / kLanes;  // vectors that hold one block

/// Returns true if a kernel applies an activation to its sums in registers. The code is unrolled
/// once for each such activation and tile. So a longer activation is applied to the stored results,
/// which lie in L1.
constexpr bool fits_registers(const Activation& activation) {
  return is_clamp(activation) || activation.kind == Activation::kHardswish;
}

/// The bounds of the clamp that kNone, kRelu, kRelu6 and kClamp are. A NaN stays a NaN, as in
/// torch.
struct Clamp {
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
};
constexpr Clamp clamp_of(const Activation& activation) {
  Clamp clamp;
  if (activation.kind == Activation::kClamp) return {activation.numbers[0], activation.numbers[1]};
  if (activation.kind == Activation::kRelu || activation.kind == Activation::kRelu6) clamp.low = 0;
  if (activation.kind == Activation::kRelu6) clamp.high = 6;
  return clamp;
}
inline Vec apply_clamp(const Vec& x, const Vec& low, const Vec& high) {
  return clamp_max(clamp_min(x, low), high);
}

#if defined(__AVX512F__)

/// Returns e^-x with a relative error of (2 + |x|) 1e-7. The result is 0 or infinity if e^-x is not
/// a normal number of f32, and a NaN if x is one. It is 2^-n 2^f with |f| <= 1 / 2, where 2^f is
/// the minimax polynomial of degree 5 that is 1 at 0.
inline Vec exp_minus(Vec x) {
  const __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504F));
  const Vec f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEAREST_INT);  // 0 of an infinity
  Vec p = fmadd(f, Vec(0.00132029818F), Vec(0.00967495237F));
  p = fmadd(p, f, Vec(0.0555104725F));
  p = fmadd(p, f, Vec(0.240221664F));
  p = fmadd(p, f, Vec(0.693146586F));
  p = fmadd(p, f, Vec(1.0F));
  return _mm512_scalef_ps(p, _mm512_sub_ps(t, f));
}

#else

/// Returns e^-x with a relative error of about 2e-7. The result is infinity below x = -88.4 and 0
/// above 87.7. A NaN stays a NaN. It is 2^n e^-f with |f| <= ln 2 / 2, where e^-f is the minimax
/// polynomial of degree 5 that is 1 at 0.
inline Vec exp_minus(Vec x) {
  x = apply_clamp(x, Vec(-89.0F), Vec(88.0F));  // n is 128, whose 2^n is infinity, to -127: 0
  // The sum's low bits are the nearest integer n, as the exponent of 2^n wants it: plus 127.
  constexpr float kRound = 12582912.0F + 127.0F;  // 1.5 * 2^23 + 127
  const Vec shifted = fmadd(x, Vec(-1.44269504F), Vec(kRound));
  const Vec n = shifted - Vec(kRound);
  const Vec high = fmadd(n, Vec(0.693359375F), x);  // ln 2 in two parts
  const Vec f = fmadd(n, Vec(-2.12194440e-4F), high);
  Vec p = fmadd(f, Vec(-0.00829031474F), Vec(0.0418979295F));
  p = fmadd(p, f, Vec(-0.166676362F));
  p = fmadd(p, f, Vec(0.499991495F));
  p = fmadd(p, f, Vec(-0.999999707F));
  p = fmadd(p, f, Vec(1.0F));
  return p * shift_left(shifted, 23);  // 2^(n - 127) of the integer n in the low bits
}

#endif

/// Returns |x|. A NaN stays a NaN.
inline Vec magnitude(const Vec& x) { return clamp_min(x, Vec(0.0F) - x); }

/// The parts of gelu and of its derivative. Phi(x) is (1 + erf(x / sqrt(2))) / 2.
struct NormalTail {
  Vec t;      // |x|, at most 16: Phi(-16) is 0 in f32
  Vec power;  // e^(-t^2 / 2)
  Vec tail;   // Phi(-t)
};

/// Returns the parts of gelu at x. Phi(-t) is e^(-t^2 / 2) times a polynomial of degree 8 in 1 / (1
/// + 0.3 t). This is the minimax fit of erfcx(t / sqrt(2)) / 2 on [0, 14], with a relative error
/// of 1.6e-7. A NaN stays a NaN.
inline NormalTail normal_tail(const Vec& x) {
  const Vec one(1.0F), t = clamp_max(magnitude(x), Vec(16.0F));
  const Vec k = one / fmadd(t, Vec(0.3F), one);
  Vec p = fmadd(k, Vec(0.0356747694F), Vec(-0.157203048F));
  p = fmadd(p, k, Vec(0.206353456F));
  p = fmadd(p, k, Vec(-0.0536836013F));
  p = fmadd(p, k, Vec(0.128561601F));
  p = fmadd(p, k, Vec(0.0999135002F));
  p = fmadd(p, k, Vec(0.120753951F));
  p = fmadd(p, k, Vec(0.119629301F));
  const Vec power = exp_minus(t * t * Vec(0.5F));
  return {t, power, p * k * power};
}

/// Returns x Phi(x). It is computed as max(x, 0) - t Phi(-t) with t = |x|, which has no
/// cancellation. The relative error is (6 + x^2) 1e-7. A NaN stays a NaN. For -infinity the result
/// is 0, the limit, while torch returns a NaN.
inline Vec gelu(const Vec& x) {
  const NormalTail normal = normal_tail(x);
  return clamp_min(x, Vec(0.0F)) - normal.t * normal.tail;
}

/// Returns the same as gelu() with Phi(x) = (1 + tanh(u)) / 2 = 1 / (1 + e^(-2 u)), u = sqrt(2 /
/// pi) (x + 0.044715 x^3).
inline Vec gelu_tanh(const Vec& x) {
  const Vec cubic = fmadd(x * x, Vec(0.044715F), Vec(1.0F));
  return x / (Vec(1.0F) + exp_minus(x * cubic * Vec(1.59576912F)));
}

/// Returns mish, x tanh(ln(1 + e^x)). With e = e^x and n = e (e + 2) it is x n / (n + 2). Above 20
/// the quotient is 1 in f32. The relative error is (6 + |x|) 1e-7. A NaN stays a NaN.
inline Vec mish(const Vec& x) {
  const Vec two(2.0F);
  const Vec e = exp_minus(clamp_min(Vec(0.0F) - x, Vec(-20.0F)));
  const Vec n = e * (e + two);
  return x * (n / (n + two));
}

/// Returns e^x - 1 for x in [-20, 20], and the value at the nearer bound for other x. The relative
/// error is 3e-7, also next to 0. A NaN stays a NaN. With x = n ln 2 + f and |f| <= ln 2 / 2, the
/// result is 2^n (e^f - 1) + (2^n - 1), where e^f - 1 is f + f^2 times the minimax polynomial of
/// degree 4.
inline Vec exp_minus_one(Vec x) {
  x = apply_clamp(x, Vec(-20.0F), Vec(20.0F));
  constexpr float kRound = 12582912.0F + 127.0F;  // as in exp_minus: 1.5 * 2^23 + 127
  const Vec shifted = fmadd(x, Vec(1.44269504F), Vec(kRound));
  const Vec n = shifted - Vec(kRound);
  const Vec high = fmadd(n, Vec(-0.693359375F), x);  // ln 2 in two parts
  const Vec f = fmadd(n, Vec(2.12194440e-4F), high);
  Vec p = fmadd(f, Vec(0.00138825178F), Vec(0.00836653914F));
  p = fmadd(p, f, Vec(0.0416672006F));
  p = fmadd(p, f, Vec(0.166665435F));
  p = fmadd(p, f, Vec(0.49999997F));
  const Vec power = shift_left(shifted, 23);  // 2^n
  return fmadd(fmadd(f * f, p, f), power, power - Vec(1.0F));
}

/// Returns tanh(x) = m / (m + 2) with m = e^(2 x) - 1. The relative error is 4e-7. A NaN stays a
/// NaN.
inline Vec tanh(const Vec& x) {
  const Vec m = exp_minus_one(x + x);
  return m / (m + Vec(2.0F));
}

template <Activation::Kind kind>
inline Vec activate(const Vec& x, const Activation& activation = kind) {
  const Vec zero(0.0F), one(1.0F), three(3.0F), six(6.0F), sixth(1.0F / 6);
  const Vec number(activation.numbers[0]);
  if constexpr (is_clamp(kind)) {
    const Clamp clamp = clamp_of({kind, activation.numbers[0], activation.numbers[1]});
    return apply_clamp(x, Vec(clamp.low), Vec(clamp.high));
  } else if constexpr (kind == Activation::kHardswish) {
    return x * apply_clamp(x + three, zero, six) * sixth;
  } else if constexpr (kind == Activation::kSilu) {
    return x / (one + exp_minus(x));
  } else if constexpr (kind == Activation::kSigmoid) {
    return one / (one + exp_minus(x));
  } else if constexpr (kind == Activation::kHardsigmoid) {
    return apply_clamp(x + three, zero, six) * sixth;
  } else if constexpr (kind == Activation::kGelu) {
    return gelu(x);
  } else if constexpr (kind == Activation::kGeluTanh) {
    return gelu_tanh(x);
  } else if constexpr (kind == Activation::kMish) {
    return mish(x);
  } else if constexpr (kind == Activation::kTanh) {
    return tanh(x);
  } else if constexpr (kind == Activation::kElu) {
    return fmadd(exp_minus_one(clamp_max(x, zero)), number, clamp_min(x, zero));
  } else if constexpr (kind == Activation::kLeakyRelu) {
    return fmadd(clamp_max(x, zero), number, clamp_min(x, zero));
  } else {
    static_assert(kind == Activation::kNone, "lacks the function of an activation");
    return x;
  }
}

// `activation` is passed by value, since dst might overlap a reference's numbers. The compiler
// would load these again for each vector.
template <Activation::Kind kind, class From, class To>
inline void activate_range(const From* src, To* dst, std::int64_t count, Activation activation) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    activate<kind>(Vec::loadu(src + i), activation).store(dst + i);
  if (i == count) return;
  const int rest = static_cast<int>(count - i);
  activate<kind>(Vec::loadu(src + i, rest), activation).store(dst + i, rest);
}

/// Applies the activation in place to `vectors` vectors, each `step` floats behind the one before.
template <Activation::Kind kind>
inline void activate_vectors(float* data, std::int64_t step, int vectors, Activation activation) {
  for (int i = 0; i < vectors; ++i) {
    float* const at = data + i * step;
    activate<kind>(Vec::loadu(at), activation).store(at);
  }
}

/// Calls function.operator()<kind>().
template <class Function>
inline void with_activation(Activation::Kind kind, const Function& function) {
  switch (kind) {
    case Activation::kNone:
      return function.template operator()<Activation::kNone>();
#define TORCHALGO_CASE(enumerator, ...) \
  case Activation::k##enumerator:       \
    return function.template operator()<Activation::k##enumerator>();
      TORCHALGO_ACTIVATIONS(TORCHALGO_CASE)
#undef TORCHALGO_CASE
  }
}

/// Sets the lanes from `channels` on to zero in `pixels` blocks, each `step` floats behind the one
/// before.
template <class Element>
inline void clear_lanes(Element* block, std::int64_t step, std::int64_t pixels,
                        std::int64_t channels) {
  for (std::int64_t i = 0; i < pixels; ++i, block += step) {
    for (std::int64_t lane = channels; lane < kBlock; ++lane) block[lane] = 0;
  }
}

/// Computes dst[i] = activation(src[i]). src may be dst. Otherwise they must not overlap.
template <class From, class To>
inline void activate(const From* src, To* dst, std::int64_t count, const Activation& activation) {
  with_activation(activation.kind, [&]<Activation::Kind kind>() {
    activate_range<kind>(src, dst, count, activation);
  });
}

}  // namespace
}  // namespace torchalgo::kernels

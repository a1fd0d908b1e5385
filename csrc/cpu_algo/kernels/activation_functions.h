// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Activations and their derivatives on vectors. Only sources of this folder may include it, as
// epilogue.h: everything is in an anonymous namespace.

#include <limits>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels {
namespace {

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

/// Returns s (1 + v e^-u s) with s = 1 / (1 + e^-u), the logistic function. This is the derivative
/// of x s(u(x)) with v = x u'(x). Nothing cancels for large u, since 1 - s is e^-u s. u must be
/// above -88, so that e^-u is a number.
inline Vec logistic_slope(const Vec& u, const Vec& v) {
  const Vec one(1.0F), power = exp_minus(u), s = one / (one + power);
  return s * fmadd(v, power * s, one);
}

/// Returns the derivative of the logistic function, e / (1 + e)^2 with e = e^-|x|.
inline Vec logistic_derivative(const Vec& x) {
  const Vec power = exp_minus(magnitude(x)), sum = Vec(1.0F) + power;
  return power / (sum * sum);
}

/// Returns Phi(x) + x e^(-x^2 / 2) / sqrt(2 pi), the derivative of gelu.
inline Vec gelu_derivative(const Vec& x) {
  const NormalTail normal = normal_tail(x);
  const Vec zero(0.0F), phi = where_less(x, zero, normal.tail, Vec(1.0F) - normal.tail);
  const Vec signed_t = where_less(x, zero, zero - normal.t, normal.t);
  return fmadd(signed_t * Vec(0.398942280F), normal.power, phi);
}

/// Returns the derivative of gelu_tanh. It is 0 below -10 and 1 above 10 in f32.
inline Vec gelu_tanh_derivative(const Vec& x) {
  const Vec y = apply_clamp(x, Vec(-10.0F), Vec(10.0F)), square = y * y;
  const Vec u = y * fmadd(square, Vec(0.0713548163F), Vec(1.59576912F));  // 2 sqrt(2 / pi) (...)
  return logistic_slope(u, y * fmadd(square, Vec(0.214064449F), Vec(1.59576912F)));
}

/// Returns the derivative of mish. With e and n as in mish it is (n + 4 x e (e + 1) / m) / m, where
/// m is n + 2. Above 20 it is 1 in f32.
inline Vec mish_derivative(const Vec& x) {
  const Vec one(1.0F), two(2.0F), y = clamp_max(x, Vec(20.0F));
  const Vec e = exp_minus(Vec(0.0F) - y), n = e * (e + two), sum = n + two;
  return fmadd(y / sum, Vec(4.0F) * e * (e + one), n) / sum;
}

/// Returns diff times the derivative of the activation at x. Kinks have the derivatives that torch
/// gives them. Where the derivative is a constant 0, a NaN of diff does not count, as in torch.
template <Activation::Kind kind>
inline Vec activation_gradient(const Vec& diff, const Vec& x, const Activation& activation) {
  const Vec zero(0.0F), three(3.0F), number(activation.numbers[0]);
  if constexpr (is_clamp(kind)) {
    const Clamp clamp = clamp_of({kind, activation.numbers[0], activation.numbers[1]});
    const Vec above = where_at_most(x, Vec(clamp.low), zero, diff);
    // A ReLU has no upper bound, so an infinite x keeps its gradient.
    return kind == Activation::kRelu ? above : where_at_most(Vec(clamp.high), x, zero, above);
  } else if constexpr (kind == Activation::kHardswish) {
    const Vec inner = diff * fmadd(x, Vec(1.0F / 3), Vec(0.5F));
    return where_less(three, x, diff, where_less(x, zero - three, zero, inner));
  } else if constexpr (kind == Activation::kHardsigmoid) {
    const Vec inner = where_less(x, three, diff * Vec(1.0F / 6), zero);
    return where_less(zero - three, x, inner, zero);
  } else if constexpr (kind == Activation::kSilu) {
    const Vec y = clamp_min(x, Vec(-87.0F));
    return diff * logistic_slope(y, y);
  } else if constexpr (kind == Activation::kSigmoid) {
    return diff * logistic_derivative(x);
  } else if constexpr (kind == Activation::kTanh) {
    return diff * Vec(4.0F) * logistic_derivative(x + x);
  } else if constexpr (kind == Activation::kGelu) {
    return diff * gelu_derivative(x);
  } else if constexpr (kind == Activation::kGeluTanh) {
    return diff * gelu_tanh_derivative(x);
  } else if constexpr (kind == Activation::kMish) {
    return diff * mish_derivative(x);
  } else if constexpr (kind == Activation::kElu) {
    return where_less(zero, x, diff, diff * number * exp_minus(zero - x));
  } else if constexpr (kind == Activation::kLeakyRelu) {
    return where_less(zero, x, diff, diff * number);
  } else {
    static_assert(kind == Activation::kNone, "lacks the gradient of an activation");
    return diff;
  }
}

}  // namespace
}  // namespace torchalgo::kernels

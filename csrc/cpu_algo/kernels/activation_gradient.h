// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Derivatives of activations. Only sources of this folder may include it, as epilogue.h: everything
// is in an anonymous namespace.

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/epilogue.h"
#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels {
namespace {

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

// `activation` is passed by value for the same reason as in activate_range.
template <Activation::Kind kind>
inline void activation_gradient_range(const float* diff, const float* x, float* dst,
                                      std::int64_t count, Activation activation) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    activation_gradient<kind>(Vec::loadu(diff + i), Vec::loadu(x + i), activation).store(dst + i);
  }
  if (i == count) return;
  const std::int64_t rest = count - i;
  activation_gradient<kind>(Vec::loadu(diff + i, rest), Vec::loadu(x + i, rest), activation)
      .store(dst + i, rest);
}

}  // namespace
}  // namespace torchalgo::kernels

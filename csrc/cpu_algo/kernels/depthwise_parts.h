// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Functions for run_depthwise and run_grouped. Only sources of this folder may include it, as
// epilogue.h.

#include "cpu_algo/kernels/depthwise.h"
#include "cpu_algo/kernels/epilogue.h"

namespace torchalgo::kernels {
namespace {

/// The output columns of one register tile. 7 accumulators hide the latency of the multiply-add and
/// divide the widths 7, 14, 28, 56, 112 of the usual nets. They leave AVX2 registers for a row of 5
/// weights.
constexpr int kColumns = 7;

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline std::int64_t at_least(std::int64_t a, std::int64_t low) { return a < low ? low : a; }
inline std::int64_t at_most(std::int64_t a, std::int64_t high) { return a < high ? a : high; }

/// The taps of a tile that lie outside the image: none; the first `taps / 2`, the last right_edge()
/// or both, as with the usual "same" padding; or others.
enum class Edge : std::uint8_t { kNone, kLeft, kRight, kBoth, kAny };

/// Returns the number of taps beyond the right edge with "same" padding. With stride 2 it is one,
/// if there are any.
constexpr int right_edge(int taps, int stride) { return stride == 1 ? taps / 2 : 1; }

/// The range of pixels that a tile of `columns` reads, of those that its taps reach.
template <int taps, int stride, int columns, Edge edge>
struct TileReach {
  static constexpr int kWidth = (columns - 1) * stride + taps;
  static constexpr bool kAtLeft = edge == Edge::kLeft || edge == Edge::kBoth;
  static constexpr bool kAtRight = edge == Edge::kRight || edge == Edge::kBoth;
  static constexpr int kBegin = kAtLeft ? taps / 2 : 0;
  static constexpr int kEnd = kAtRight ? kWidth - right_edge(taps, stride) : kWidth;
};

/// Returns the edges of a tile whose first tap lies at column x of an image of width w.
inline Edge find_edge(int taps, int stride, std::int64_t x, std::int64_t columns, std::int64_t w) {
  const std::int64_t left = at_least(-x, 0);
  const std::int64_t right = at_least(x + (columns - 1) * stride + taps - w, 0);
  const bool is_left = left == taps / 2, is_right = right == right_edge(taps, stride);
  if ((left != 0 && !is_left) || (right != 0 && !is_right)) return Edge::kAny;
  if (is_left) return is_right ? Edge::kBoth : Edge::kLeft;
  return is_right ? Edge::kRight : Edge::kNone;
}

/// Calls function.operator()<edge>().
template <class Function>
inline void with_edge(Edge edge, const Function& function) {
  switch (edge) {
    case Edge::kNone:
      return function.template operator()<Edge::kNone>();
    case Edge::kLeft:
      return function.template operator()<Edge::kLeft>();
    case Edge::kRight:
      return function.template operator()<Edge::kRight>();
    case Edge::kBoth:
      return function.template operator()<Edge::kBoth>();
    case Edge::kAny:
      return function.template operator()<Edge::kAny>();
  }
}

/// Stores activation(x) of `count` vectors at x.
[[gnu::noinline]] void activate_columns(const Activation& activation, const float* x, int count,
                                        Bf16* dst, std::int64_t pixel) {
  with_activation(activation.kind, [&]<Activation::Kind kind>() {
    for (int u = 0; u < count; ++u)
      activate<kind>(Vec::loadu(x + u * kLanes), activation).store(dst + u * pixel);
  });
}

/// Stores function(x) for each vector x, `pixel` elements behind the one before.
template <int columns, class Element, class Function>
[[gnu::always_inline]] inline void store_each(const Function& function, const Vec (&x)[columns],
                                              Element* dst, std::int64_t pixel) {
#pragma GCC unroll 8
  for (int u = 0; u + 1 < columns; u += 2)
    store_two(function(x[u]), dst + u * pixel, function(x[u + 1]), dst + (u + 1) * pixel);
  if constexpr (columns % 2 == 1) function(x[columns - 1]).store(dst + (columns - 1) * pixel);
}

/// Stores the sums of adjacent pixels with the residual and, if it fits_registers(), the
/// activation. Results of bf16 get every activation, because they must be rounded once only.
template <int columns, class Element>
inline void store_columns(const Depthwise& conv, const Element* residual, Element* dst,
                          std::int64_t pixel, Vec (&sums)[columns]) {
  if (residual != nullptr) {
#pragma GCC unroll 8
    for (int u = 0; u < columns; ++u) sums[u] = sums[u] + Vec::loadu(residual + u * pixel);
  }
  if (conv.activation.kind == Activation::kHardswish) {
    return store_each([](const Vec& x) { return activate<Activation::kHardswish>(x); }, sums, dst,
                      pixel);
  }
  if constexpr (is_bf16<Element>) {
    if (!fits_registers(conv.activation)) {
      alignas(Native) float x[columns * kLanes];
#pragma GCC unroll 8
      for (int u = 0; u < columns; ++u) sums[u].store(x + u * kLanes);
      return activate_columns(conv.activation, x, columns, dst, pixel);
    }
  }
  const Clamp clamp = clamp_of(conv.activation);
  const Vec low(clamp.low);
  const Vec high(clamp.high);
  store_each([&](const Vec& x) { return apply_clamp(x, low, high); }, sums, dst, pixel);
}

/// Applies the activation to `rows` output rows if store_columns has not done so.
template <class Element>
inline void activate_rows(const Depthwise& conv, Element* dst, std::int64_t rows,
                          bool is_last_block) {
  if constexpr (!is_bf16<Element>) {
    if (fits_registers(conv.activation)) return;
    const std::int64_t pixels = rows * conv.q;
    activate(dst, dst, pixels * conv.pixel, conv.activation);
    if (!is_last_block || keeps_zero(conv.activation)) return;
    clear_lanes(dst, kBlock, pixels, kBlock - conv.pad_lanes);
  }
}

}  // namespace
}  // namespace torchalgo::kernels

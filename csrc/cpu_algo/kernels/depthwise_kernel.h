// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The kernel of run_depthwise and run_depthwise_bf16. Only their sources may include it, as
// epilogue.h.

#include "cpu_algo/kernels/depthwise_parts.h"
#include "cpu_algo/kernels/instances.h"

namespace torchalgo::kernels {
namespace {

// Calls look<taps, stride>() for each filter that has functions of its own, which are most of this
// code. Other filters run in the functions for any filter.
template <class Look>
void for_each_filter(const Look& look) {
  look.template operator()<3, 1>();
  look.template operator()<3, 2>();
  look.template operator()<5, 1>();
  look.template operator()<5, 2>();
  look.template operator()<7, 1>();
}

// Calls look<fixed_pixel>() if there are functions of this filter for the pixels of `conv`: 16, or
// 0 for pixels of other than 16 channels. Emission to C++ notes those of f32 only.
template <class Element, int taps, int stride, class Look>
void with_pixel(const Depthwise& conv, const Look& look) {
  if constexpr (is_bf16<Element>) {
    look.template operator()<0>();
  } else {
    constexpr int kIndex = 2 * (taps - 3 + stride - 1);
    const bool is_other = conv.pixel != kBlock;
    note_instance(kDepthwise, kIndex + (is_other ? 1 : 0));
    if constexpr (has_instance(kDepthwise, kIndex))
      if (!is_other) look.template operator()<kBlock>();
    if constexpr (has_instance(kDepthwise, kIndex + 1))
      if (is_other) look.template operator()<0>();
  }
}

// The fewest columns whose strips have functions of their own. Functions for bf16 would be half of
// this code. So narrow strips have none, and no strip has one in the builds without AVX512_BF16.
#if defined(__AVX512BF16__)
constexpr int kFewestInBf16 = 4;
#else
constexpr int kFewestInBf16 = kColumns + 1;
#endif
template <class Element>
constexpr int kFewestColumns = is_bf16<Element> ? kFewestInBf16 : 1;

// Output columns of one row, one vector of channels.
template <class Element>
struct Strip {
  const Element* src;           // pixel of tap (0, 0) of the first column; may lie outside
  const float* weights;         // tap (0, 0)
  const float* bias;            // of these channels
  const Element* residual;      // of the first column; null: none
  Element* dst;                 // of the first column
  std::int64_t x;               // column of `src` in the image, negative in the left padding
  std::int64_t r_begin, r_end;  // tap rows inside the image
};
template <class Element>
using RunStrip = void (*)(const Depthwise&, const Strip<Element>&);

// Computes a strip for `taps` taps per row without dilation. Each pixel is loaded once and used by
// all columns that it reaches. `fixed_pixel` is 16, or 0 for conv.pixel.
template <class Element, int taps, int stride, int fixed_pixel, Edge edge, int columns>
void run_strip(const Depthwise& conv, const Strip<Element>& strip) {
  using Reach = TileReach<taps, stride, columns, edge>;
  const std::int64_t pixel = fixed_pixel != 0 ? fixed_pixel : conv.pixel;
  const std::int64_t row_step = conv.dilation_h * conv.w * pixel;
  const Element* row = strip.src + strip.r_begin * row_step;
  const float* weights = strip.weights + strip.r_begin * taps * pixel;
  Vec sums[columns];
#pragma GCC unroll 8
  for (int u = 0; u < columns; ++u) sums[u] = Vec::loadu(strip.bias);
  for (std::int64_t r = strip.r_begin; r < strip.r_end; ++r) {
    Vec tap[taps];
#pragma GCC unroll 8
    for (int s = 0; s < taps; ++s) tap[s] = Vec::loadu(weights + s * pixel);
#pragma GCC unroll 32
    for (int x = Reach::kBegin; x < Reach::kEnd; ++x) {
      if (edge == Edge::kAny && (strip.x + x < 0 || strip.x + x >= conv.w)) continue;
      const Vec value = Vec::loadu(row + x * pixel);
#pragma GCC unroll 8
      for (int s = 0; s < taps; ++s) {
        const int u = (x - s) / stride;
        if (x >= s && (x - s) % stride == 0 && u < columns) sums[u] = fmadd(value, tap[s], sums[u]);
      }
    }
    row += row_step;
    weights += taps * pixel;
  }
  store_columns(conv, strip.residual, strip.dst, pixel, sums);
}

// Computes a strip for any filter. If `is_inside`, all of its taps lie inside the image's columns.
template <class Element, int columns, bool is_inside>
void run_any_strip(const Depthwise& conv, const Strip<Element>& strip) {
  const std::int64_t step = conv.stride_w * conv.pixel;
  Vec sums[columns];
#pragma GCC unroll 8
  for (int u = 0; u < columns; ++u) sums[u] = Vec::loadu(strip.bias);
  for (std::int64_t r = strip.r_begin; r < strip.r_end; ++r) {
    const Element* value = strip.src + r * conv.dilation_h * conv.w * conv.pixel;
    const float* weights = strip.weights + r * conv.s * conv.pixel;
    std::int64_t x = strip.x;
    for (std::int64_t s = 0; s < conv.s; ++s) {
      const Vec tap = Vec::loadu(weights);
#pragma GCC unroll 8
      for (int u = 0; u < columns; ++u) {
        const std::int64_t column = x + u * conv.stride_w;
        if (is_inside || (column >= 0 && column < conv.w))
          sums[u] = fmadd(Vec::loadu(value + u * step), tap, sums[u]);
      }
      value += conv.dilation_w * conv.pixel;
      weights += conv.pixel;
      x += conv.dilation_w;
    }
  }
  store_columns(conv, strip.residual, strip.dst, conv.pixel, sums);
}

// Returns the function for a strip of `columns` of any filter.
template <class Element, bool is_inside>
RunStrip<Element> any_strip_of(int columns) {
  static constexpr RunStrip<Element> kStrips[kColumns] = {
      &run_any_strip<Element, 1, is_inside>, &run_any_strip<Element, 2, is_inside>,
      &run_any_strip<Element, 3, is_inside>, &run_any_strip<Element, 4, is_inside>,
      &run_any_strip<Element, 5, is_inside>, &run_any_strip<Element, 6, is_inside>,
      &run_any_strip<Element, 7, is_inside>,
  };
  return kStrips[columns - 1];
}

template <class Element, int taps, int stride, int fixed_pixel, Edge edge, int... more>
RunStrip<Element> strip_of(int columns, std::integer_sequence<int, more...>) {
  constexpr int kFewest = kFewestColumns<Element>;
  static constexpr RunStrip<Element> kStrips[] = {
      &run_strip<Element, taps, stride, fixed_pixel, edge, kFewest + more>...};
  return kStrips[columns - kFewest];
}

template <class Element, int taps, int stride, int fixed_pixel>
RunStrip<Element> strip_of(int columns, Edge edge) {
  constexpr auto kCounts =
      std::make_integer_sequence<int, kColumns - kFewestColumns<Element> + 1>();
  switch (edge) {
    case Edge::kNone:
      return strip_of<Element, taps, stride, fixed_pixel, Edge::kNone>(columns, kCounts);
    case Edge::kLeft:
      return strip_of<Element, taps, stride, fixed_pixel, Edge::kLeft>(columns, kCounts);
    case Edge::kRight:
      return strip_of<Element, taps, stride, fixed_pixel, Edge::kRight>(columns, kCounts);
    case Edge::kBoth:
      return strip_of<Element, taps, stride, fixed_pixel, Edge::kBoth>(columns, kCounts);
    case Edge::kAny:
      break;
  }
  return strip_of<Element, taps, stride, 0, Edge::kAny>(columns, kCounts);
}

// Returns the function for a strip whose first tap lies at image column x.
template <class Element>
RunStrip<Element> find_strip(const Depthwise& conv, std::int64_t x, int columns) {
  if constexpr (kFewestColumns<Element> <= kColumns) {
    if (conv.dilation_w == 1 && columns >= kFewestColumns<Element>) {
      RunStrip<Element> found = nullptr;
      const auto look = [&]<int taps, int stride>() {
        if (conv.s != taps || conv.stride_w != stride) return;
        with_pixel<Element, taps, stride>(conv, [&]<int fixed_pixel>() {
          const Edge edge = find_edge(taps, stride, x, columns, conv.w);
          found = strip_of<Element, taps, stride, fixed_pixel>(columns, edge);
        });
      };
      for_each_filter(look);
      if (found != nullptr) return found;
    }
  }
  const std::int64_t last = x + (columns - 1) * conv.stride_w + conv.dilation_w * (conv.s - 1);
  return x >= 0 && last < conv.w ? any_strip_of<Element, true>(columns)
                                 : any_strip_of<Element, false>(columns);
}

// One output row of one plane. Its tap rows [r_begin, r_end) lie inside the image.
template <class Element>
struct Row {
  const Depthwise& conv;
  const Element* src;  // pixel of tap row 0, column 0; may lie outside
  const float* weights;
  const float* bias;
  const Element* residual;  // null: none
  Element* dst;
  std::int64_t r_begin, r_end;

  // Returns the strip that starts at output column `column`, for the vector at `lane` of the pixel.
  Strip<Element> strip(std::int64_t column, std::int64_t lane) const {
    const std::int64_t x = column * conv.stride_w - conv.pad_w;
    const std::int64_t out = column * conv.pixel + lane;
    return {src + x * conv.pixel + lane,
            weights + lane,
            bias + lane,
            residual == nullptr ? nullptr : residual + out,
            dst + out,
            x,
            r_begin,
            r_end};
  }

  // Calls function(lane) for each vector of a pixel.
  template <class Function>
  void for_each_lane(const Function& function) const {
    for (std::int64_t group = 0; group < conv.pixel; group += kBlock) {
      const std::int64_t first = at_most(group, conv.pixel - kBlock);
      for (int v = 0; v < kBlockVectors; ++v) function(first + v * kLanes);
    }
  }

  void run(bool is_last_block) const {
    const std::int64_t count = ceil_div(conv.q, kColumns);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = conv.q * i / count;
      const std::int64_t columns = conv.q * (i + 1) / count - begin;
      const std::int64_t x = begin * conv.stride_w - conv.pad_w;
      const RunStrip<Element> run_strip = find_strip<Element>(conv, x, static_cast<int>(columns));
      for_each_lane([&](std::int64_t lane) { run_strip(conv, strip(begin, lane)); });
    }
    activate_rows(conv, dst, 1, is_last_block);
  }
};

// The number of output rows that are computed together if none of them reads padding above or
// below. Neighbouring rows read the same pixels, and with twice the sums no addition waits for the
// previous one. A row is cut into strips of kColumns; the last strip overlaps the one before it.
constexpr int kTall = 2;

template <class Element>
struct Rows {
  const Element* src;  // pixel of tap row 0, column 0
  const float* weights;
  const float* bias;
  const Element* residual;  // null: none
  Element* dst;
};
template <class Element>
using RunRows = void (*)(const Depthwise&, const Rows<Element>&);

template <class Element, int taps, int stride, int rows, int fixed_pixel, Edge edge>
inline void run_tall_strip(const Depthwise& conv, const Rows<Element>& at, std::int64_t column,
                           std::int64_t lane) {
  using Reach = TileReach<taps, stride, kColumns, edge>;
  constexpr int kSourceRows = (rows - 1) * stride + taps;
  const std::int64_t pixel = fixed_pixel != 0 ? fixed_pixel : conv.pixel;
  const std::int64_t row_step = conv.w * pixel;
  const std::int64_t first = column * stride - conv.pad_w;
  const Element* row = at.src + first * pixel + lane;
  const float* const weights = at.weights + lane;
  Vec sums[rows][kColumns];
#pragma GCC unroll 2
  for (int o = 0; o < rows; ++o) {
#pragma GCC unroll 8
    for (int u = 0; u < kColumns; ++u) sums[o][u] = Vec::loadu(at.bias + lane);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kSourceRows; ++i) {
    Vec tap[rows][taps];
#pragma GCC unroll 2
    for (int o = 0; o < rows; ++o) {
      const int r = i - o * stride;
      if (r < 0 || r >= taps) continue;
#pragma GCC unroll 8
      for (int s = 0; s < taps; ++s) tap[o][s] = Vec::loadu(weights + (r * taps + s) * pixel);
    }
#pragma GCC unroll 32
    for (int x = Reach::kBegin; x < Reach::kEnd; ++x) {
      if (edge == Edge::kAny && (first + x < 0 || first + x >= conv.w)) continue;
      const Vec value = Vec::loadu(row + x * pixel);
#pragma GCC unroll 8
      for (int s = 0; s < taps; ++s) {
        const int u = (x - s) / stride;
        if (x < s || (x - s) % stride != 0 || u >= kColumns) continue;
#pragma GCC unroll 2
        for (int o = 0; o < rows; ++o) {
          const int r = i - o * stride;
          if (r >= 0 && r < taps) sums[o][u] = fmadd(value, tap[o][s], sums[o][u]);
        }
      }
    }
    row += row_step;
  }
#pragma GCC unroll 2
  for (int o = 0; o < rows; ++o) {
    const std::int64_t out = (o * conv.q + column) * pixel + lane;
    store_columns<kColumns, Element>(conv, at.residual == nullptr ? nullptr : at.residual + out,
                                     at.dst + out, pixel, sums[o]);
  }
}

template <class Element, int taps, int stride, int rows, int fixed_pixel>
void run_rows(const Depthwise& conv, const Rows<Element>& at) {
  const std::int64_t pixel = fixed_pixel != 0 ? fixed_pixel : conv.pixel;
  for (std::int64_t next = 0; next < conv.q; next += kColumns) {
    const std::int64_t column = at_most(next, conv.q - kColumns);
    const std::int64_t x = column * stride - conv.pad_w;
    with_edge(find_edge(taps, stride, x, kColumns, conv.w), [&]<Edge edge>() {
      for (std::int64_t group = 0; group < pixel; group += kBlock) {
        run_tall_strip<Element, taps, stride, rows, fixed_pixel, edge>(
            conv, at, column, at_most(group, pixel - kBlock));
      }
    });
  }
}

// Returns the function that computes `rows` rows together, 1 or kTall. Returns null in three cases:
// the filter has no such function (5x5 with stride 1 keeps the multipliers busy anyway), there are
// too few registers, or too many columns would be computed twice.
template <class Element>
RunRows<Element> find_rows(const Depthwise& conv, int rows) {
  if constexpr (kLanes == kBlock && kFewestColumns<Element> <= kColumns) {
    const std::int64_t computed = ceil_div(conv.q, kColumns) * kColumns;
    if (conv.q < kColumns || 6 * conv.q < 5 * computed) return nullptr;
    if (conv.r != conv.s || conv.stride_h != conv.stride_w) return nullptr;
    if (conv.dilation_h != 1 || conv.dilation_w != 1) return nullptr;
    RunRows<Element> found = nullptr;
    const auto look = [&]<int taps, int stride>() {
      // A row of bf16 is converted for each row of results, which takes longer than a load.
      constexpr bool has_rows = taps == 3 || (taps == 5 && (stride == 2 || is_bf16<Element>));
      if constexpr (has_rows) {
        if (conv.s != taps || conv.stride_w != stride) return;
        with_pixel<Element, taps, stride>(conv, [&]<int fixed_pixel>() {
          found = rows == 1 ? &run_rows<Element, taps, stride, 1, fixed_pixel>
                            : &run_rows<Element, taps, stride, kTall, fixed_pixel>;
        });
      }
    };
    for_each_filter(look);
    return found;
  }
  return nullptr;
}

/// Computes the output rows [begin, end) of all n * blocks * p rows.
template <class Element>
void run_strips(const Depthwise& conv, std::int64_t begin, std::int64_t end) {
  const auto* const src = of<Element>(conv.src);
  const auto* const residual = of<Element>(conv.residual);
  auto* const dst = of<Element>(conv.dst);
  const RunRows<Element> tall = find_rows<Element>(conv, kTall);
  const RunRows<Element> single = find_rows<Element>(conv, 1);
  for (std::int64_t task = begin; task < end;) {
    const std::int64_t plane = task / conv.p;
    const std::int64_t block = plane % conv.blocks;
    const std::int64_t y = task % conv.p * conv.stride_h - conv.pad_h;
    const std::int64_t out = plane * conv.dst_plane + task % conv.p * conv.q * conv.pixel;
    const std::int64_t left = at_most(end - task, conv.p - task % conv.p);
    const bool is_inside = y >= 0 && y + (conv.r - 1) * conv.dilation_h < conv.h;
    if (single != nullptr && is_inside) {
      const bool is_tall = left >= kTall && y + (kTall - 1) * conv.stride_h + conv.r <= conv.h;
      const Rows<Element> rows = {src + plane * conv.src_plane + y * conv.w * conv.pixel,
                                  conv.weights + block * conv.r * conv.s * conv.pixel,
                                  conv.bias + block * conv.pixel,
                                  residual == nullptr ? nullptr : residual + out, dst + out};
      (is_tall ? tall : single)(conv, rows);
      activate_rows(conv, dst + out, is_tall ? kTall : 1, block + 1 == conv.blocks);
      task += is_tall ? kTall : 1;
      continue;
    }
    ++task;
    const Row<Element> row = {conv,
                              src + plane * conv.src_plane + y * conv.w * conv.pixel,
                              conv.weights + block * conv.r * conv.s * conv.pixel,
                              conv.bias + block * conv.pixel,
                              residual == nullptr ? nullptr : residual + out,
                              dst + out,
                              at_least(ceil_div(at_least(-y, 0), conv.dilation_h), 0),
                              at_most(ceil_div(at_least(conv.h - y, 0), conv.dilation_h), conv.r)};
    row.run(block + 1 == conv.blocks);
  }
}

}  // namespace
}  // namespace torchalgo::kernels

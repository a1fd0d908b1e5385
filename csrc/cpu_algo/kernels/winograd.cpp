// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/winograd.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "cpu_algo/kernels/epilogue.h"
#include "cpu_algo/kernels/gemm_tile.h"

namespace torchalgo::kernels {
namespace {

Vec constant(double value) { return Vec(static_cast<float>(value)); }

// Coefficients of a polynomial in x^2, lowest first; the highest is 1.
struct Coefficients {
  double c[WinogradPoints::kMaxPairs + 1] = {1};
};
// Of the product of (x^2 - p^2) over all pairs of points but `skipped`.
constexpr Coefficients product(const WinogradPoints& points, int skipped) {
  Coefficients result;
  int degree = 0;
  for (int pair = 0; pair < points.pairs; ++pair) {
    if (pair == skipped) continue;
    ++degree;
    result.c[degree] = 1;
    for (int i = degree - 1; i >= 0; --i) {
      result.c[i] = (i > 0 ? result.c[i - 1] : 0) - points.p[pair] * points.p[pair] * result.c[i];
    }
  }
  return result;
}

// The values of a tile stay in registers only where these are inlined.
template <int degree, int step>
[[gnu::always_inline]] inline Vec evaluate(const Coefficients& coefficients, const Vec* x) {
  Vec value = x[std::ptrdiff_t{2} * step * degree];
#pragma GCC unroll 4
  for (int i = degree - 1; i >= 0; --i)
    value = fmadd(constant(coefficients.c[i]), x[std::ptrdiff_t{2} * step * i], value);
  return value;
}

// Row k of the source transform holds the coefficients of the product of (x - p) over all points p
// but the k-th: those of +p and -p share their even and their odd powers. Of x, every step-th.
template <int size, int step = 1>
[[gnu::always_inline]] inline void transform(const Vec* x, Vec* y) {
  constexpr WinogradPoints kPoints = winograd_points(size);
  constexpr int kPairs = kPoints.pairs;
  if constexpr (size == 1) {
    y[0] = x[0];
  } else {
    constexpr Coefficients kAll = product(kPoints, -1);
    y[0] = evaluate<kPairs, step>(kAll, x);
    y[size - 1] = evaluate<kPairs, step>(kAll, x + step);
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      const Coefficients others = product(kPoints, pair);
      const Vec even = evaluate<kPairs - 1, step>(others, x + 2 * step);
      const Vec odd = evaluate<kPairs - 1, step>(others, x + step);
      y[2 * pair + 1] = fmadd(constant(kPoints.p[pair]), odd, even);
      y[2 * pair + 2] = fnmadd(constant(kPoints.p[pair]), odd, even);
    }
  }
}

template <WinogradAxis axis>
[[gnu::always_inline]] inline void transform_axis(const Vec (&x)[axis.size()],
                                                  Vec (&y)[axis.size()]) {
  if constexpr (axis.stride == 1) {
    transform<axis.size()>(x, y);
  } else {
    transform<axis.m + 1, 2>(x, y);
#pragma GCC unroll 6
    for (int i = 0; i < axis.m; ++i) y[axis.m + 1 + i] = x[2 * i + 1];
  }
}

// Row i of the transform back holds the i-th powers of the points.
template <int size, int m>
[[gnu::always_inline]] inline void transform_back(const Vec* x, Vec (&y)[m]) {
  constexpr WinogradPoints kPoints = winograd_points(size);
  constexpr int kPairs = kPoints.pairs;
  if constexpr (size == 1) {
    y[0] = x[0];
  } else {
    Vec sums[2][kPairs];  // of the values at +p and -p, and their differences
    double powers[kPairs];
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      sums[0][pair] = x[2 * pair + 1] + x[2 * pair + 2];
      sums[1][pair] = x[2 * pair + 1] - x[2 * pair + 2];
      powers[pair] = 1;
    }
#pragma GCC unroll 6
    for (int i = 0; i < m; ++i) {
      const auto& terms = sums[i % 2];
      Vec value = i == 0       ? terms[0] + x[0]
                  : i == m - 1 ? fmadd(constant(powers[0]), terms[0], x[size - 1])
                               : constant(powers[0]) * terms[0];
#pragma GCC unroll 4
      for (int pair = 1; pair < kPairs; ++pair)
        value = i == 0 ? value + terms[pair] : fmadd(constant(powers[pair]), terms[pair], value);
      y[i] = value;
#pragma GCC unroll 4
      for (int pair = 0; pair < kPairs; ++pair) powers[pair] *= kPoints.p[pair];
    }
  }
}

template <WinogradAxis axis>
[[gnu::always_inline]] inline void transform_axis_back(const Vec (&x)[axis.size()],
                                                       Vec (&y)[axis.m]) {
  if constexpr (axis.stride == 1) {
    transform_back<axis.size()>(x, y);
  } else {
    transform_back<axis.m + 1>(x, y);
#pragma GCC unroll 6
    for (int i = 0; i < axis.m; ++i) y[i] = y[i] + x[axis.m + 1 + i];
  }
}

std::int64_t at_least(std::int64_t a, std::int64_t low) { return a < low ? low : a; }
std::int64_t at_most(std::int64_t a, std::int64_t high) { return a < high ? a : high; }

struct TilePosition {
  std::int64_t image, y, x;  // y, x: first output row and column
};
template <int index>
TilePosition position_of(const Winograd& conv, std::int64_t tile) {
  constexpr WinogradTile kTile = kWinogradTiles[index];
  const std::int64_t row = tile / conv.tiles_w;
  return {row / conv.tiles_h, row % conv.tiles_h * kTile.h.m, tile % conv.tiles_w * kTile.w.m};
}

// Rows and columns [begin, end) of a source tile that lie inside the image.
struct Inside {
  std::int64_t y_begin, y_end, x_begin, x_end;
};

// src: element (0, 0) of the tile, which may lie outside the image; everything outside is zero.
template <int index, bool is_whole>
void transform_src(const float* src, std::int64_t row_step, const Inside& inside, float* v,
                   std::int64_t v_step) {
  constexpr WinogradTile kTile = kWinogradTiles[index];
  constexpr int kHeight = kTile.h.size();
  constexpr int kWidth = kTile.w.size();
  Vec mid[kHeight][kWidth];
#pragma GCC unroll 10
  for (int x = 0; x < kWidth; ++x) {
    Vec column[kHeight];
    Vec transformed[kHeight];
#pragma GCC unroll 10
    for (int y = 0; y < kHeight; ++y) {
      const bool is_inside = is_whole || (y >= inside.y_begin && y < inside.y_end &&
                                          x >= inside.x_begin && x < inside.x_end);
      column[y] = is_inside ? Vec::loadu(src + y * row_step + x * kBlock) : Vec(0.0F);
    }
    transform_axis<kTile.h>(column, transformed);
#pragma GCC unroll 10
    for (int y = 0; y < kHeight; ++y) mid[y][x] = transformed[y];
  }
#pragma GCC unroll 10
  for (int y = 0; y < kHeight; ++y) {
    Vec transformed[kWidth];
    transform_axis<kTile.w>(mid[y], transformed);
#pragma GCC unroll 10
    for (int x = 0; x < kWidth; ++x) transformed[x].store(v + (y * kWidth + x) * v_step);
  }
}

template <int index>
void transform_block(const Winograd& conv, const TileBlock& block, float* v, std::int64_t begin,
                     std::int64_t end) {
  constexpr WinogradTile kTile = kWinogradTiles[index];
  constexpr int kHeight = kTile.h.size();
  constexpr int kWidth = kTile.w.size();
  const std::int64_t row_step = conv.w * kBlock;
  const std::int64_t v_step = winograd_v_step(conv.c_blocks, block.count);
  for (std::int64_t c = begin; c < end; ++c) {
    for (std::int64_t i = 0; i < block.count; ++i) {
      const TilePosition tile = position_of<index>(conv, block.begin + i);
      const std::int64_t y = tile.y * kTile.h.stride - conv.pad_h;
      const std::int64_t x = tile.x * kTile.w.stride - conv.pad_w;
      const Inside inside = {at_least(-y, 0), at_most(conv.h - y, kHeight), at_least(-x, 0),
                             at_most(conv.w - x, kWidth)};
      const bool is_whole = inside.y_begin == 0 && inside.y_end == kHeight && inside.x_begin == 0 &&
                            inside.x_end == kWidth;
      const float* src = conv.src + (tile.image * conv.c_blocks + c) * conv.h * row_step +
                         y * row_step + x * kBlock;
      float* out = v + (c * block.count + i) * kBlock;
      for (int lane = 0; lane < kBlock; lane += kLanes) {
        if (is_whole) {
          transform_src<index, true>(src + lane, row_step, inside, out + lane, v_step);
        } else {
          transform_src<index, false>(src + lane, row_step, inside, out + lane, v_step);
        }
      }
    }
  }
}

// Where one block of channels of an output tile goes.
struct DstTile {
  const float* bias;
  const float* residual;  // null: none
  float* dst;
  std::int64_t row_step;
  std::int64_t rows, columns;  // inside the image, at most those of the tile
};

template <int index, bool is_whole>
void transform_dst(const float* src, std::int64_t step, const DstTile& tile, const Clamp& clamp) {
  constexpr WinogradAxis kH = kWinogradTiles[index].h;
  constexpr WinogradAxis kW = kWinogradTiles[index].w;
  Vec mid[kH.m][kW.size()];
#pragma GCC unroll 10
  for (int x = 0; x < kW.size(); ++x) {
    Vec column[kH.size()];
    Vec transformed[kH.m];
#pragma GCC unroll 10
    for (int y = 0; y < kH.size(); ++y) column[y] = Vec::loadu(src + (y * kW.size() + x) * step);
    transform_axis_back<kH>(column, transformed);
#pragma GCC unroll 6
    for (int y = 0; y < kH.m; ++y) mid[y][x] = transformed[y];
  }
  const Vec bias = Vec::loadu(tile.bias);
  const Vec low(clamp.low);
  const Vec high(clamp.high);
#pragma GCC unroll 6
  for (int y = 0; y < kH.m; ++y) {
    if (!is_whole && y >= tile.rows) return;
    Vec transformed[kW.m];
    transform_axis_back<kW>(mid[y], transformed);
#pragma GCC unroll 6
    for (int x = 0; x < kW.m; ++x) {
      if (!is_whole && x >= tile.columns) break;
      const std::int64_t offset = y * tile.row_step + x * kBlock;
      Vec value = transformed[x] + bias;
      if (tile.residual != nullptr) value = value + Vec::loadu(tile.residual + offset);
      apply_clamp(value, low, high).store(tile.dst + offset);
    }
  }
}

// What is done to the stored tile, which lies in L1: activations that are no clamps; and zeros in
// the pad lanes, where such an activation, or a NaN times a weight of zero, left something else.
void finish_tile(const DstTile& tile, Activation activation, std::int64_t pad_lanes) {
  for (std::int64_t y = 0; y < tile.rows; ++y) {
    float* row = tile.dst + y * tile.row_step;
    if (!is_clamp(activation)) activate(row, row, tile.columns * kBlock, activation);
    clear_lanes(row, kBlock, tile.columns, kBlock - pad_lanes);
  }
}

// Output block `k` of all tiles; `src` is its part of M.
template <int index>
void store_block(const Winograd& conv, const TileBlock& block, const float* src, std::int64_t step,
                 std::int64_t k) {
  constexpr int kRows = kWinogradTiles[index].h.m;
  constexpr int kColumns = kWinogradTiles[index].w.m;
  const std::int64_t row_step = conv.q * kBlock;
  const Clamp clamp = clamp_of(conv.activation);
  for (std::int64_t i = 0; i < block.count; ++i) {
    const TilePosition position = position_of<index>(conv, block.begin + i);
    const std::int64_t offset = (position.image * conv.k_blocks + k) * conv.p * row_step +
                                position.y * row_step + position.x * kBlock;
    DstTile tile = {conv.bias + k * kBlock,
                    conv.residual == nullptr ? nullptr : conv.residual + offset,
                    conv.dst + offset,
                    row_step,
                    at_most(conv.p - position.y, kRows),
                    at_most(conv.q - position.x, kColumns)};
    for (int lane = 0; lane < kBlock; lane += kLanes) {
      DstTile part = tile;
      part.bias += lane;
      part.dst += lane;
      if (part.residual != nullptr) part.residual += lane;
      if (tile.rows == kRows && tile.columns == kColumns) {
        transform_dst<index, true>(src + i * kBlock + lane, step, part, clamp);
      } else {
        transform_dst<index, false>(src + i * kBlock + lane, step, part, clamp);
      }
    }
    const std::int64_t pad_lanes = k + 1 == conv.k_blocks ? conv.pad_lanes : 0;
    if (pad_lanes != 0 || !is_clamp(conv.activation)) finish_tile(tile, conv.activation, pad_lanes);
  }
}

// M of one panel: one small GEMM per element. While one is computed, its share of the next
// element's weights is fetched into L2.
void multiply_panel(const Tile& prototype, const WinogradTile& shape, std::int64_t v_step,
                    std::int64_t m_step, std::int64_t rows, int blocks) {
  const Strips strips(rows, TORCHALGO_ISA::max_tile_rows(blocks));
  const std::int64_t weights_step =
      std::int64_t{prototype.chunk_count} * prototype.depth * blocks * kBlock;
  const auto weights_of = [&](int element) {
    const int y = element / shape.w.size();
    const int x = element % shape.w.size();
    return prototype.b +
           (shape.h.weight_of(y) * shape.w.weights() + shape.w.weight_of(x)) * weights_step;
  };
  Tile tile = prototype;
  for (int element = 0; element < shape.elements(); ++element) {
    const float* a = prototype.a + element * v_step;
    float* c = prototype.c + element * m_step;
    tile.b = weights_of(element);
    tile.prefetch =
        element + 1 < shape.elements() ? weights_of(element + 1) : tile.b + weights_step;
    const bool is_new = tile.prefetch != tile.b;
    tile.prefetch_lines =
        is_new ? static_cast<int>((prototype.depth * blocks + strips.count - 1) / strips.count) : 0;
    for (std::int64_t strip = 0; strip < strips.count; ++strip) {
      tile.a = a + strips.begin(strip) * kBlock;
      tile.c = c + strips.begin(strip) * kBlock;
      TORCHALGO_ISA::gemm_tile(strips.size(strip), blocks)(tile);
      tile.prefetch += std::int64_t{tile.prefetch_lines} * tile.chunk_count * 16;
    }
  }
}

template <int index>
void multiply_block(const Winograd& conv, const TileBlock& block, const float* v, float* scratch,
                    void* chunk_memory, std::int64_t begin, std::int64_t end) {
  constexpr WinogradTile kTile = kWinogradTiles[index];
  Chunk* chunks = static_cast<Chunk*>(chunk_memory);
  const std::int64_t m_step = winograd_m_step(conv.panel_blocks, block.count);
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t first = panel * conv.panel_blocks;
    const std::int64_t blocks = at_most(conv.panel_blocks, conv.k_blocks - first);
    for (std::int64_t c = 0; c < conv.c_blocks; ++c) {
      chunks[c].a = static_cast<std::int32_t>(c * block.count * kBlock);
      chunks[c].b = static_cast<std::int32_t>(c * kBlock * blocks * kBlock);
    }
    Tile tile;
    tile.a = v;
    tile.a_row_stride = kBlock;
    tile.chunks = chunks;
    tile.chunk_count = static_cast<int>(conv.c_blocks);
    tile.depth = kBlock;
    tile.b = conv.weights + first * kBlock * kTile.weights() * conv.c_blocks * kBlock;
    tile.c = scratch;
    tile.c_row_stride = kBlock;
    tile.c_block_stride = block.count * kBlock;
    tile.columns = static_cast<int>(blocks * kBlock);
    multiply_panel(tile, kTile, winograd_v_step(conv.c_blocks, block.count), m_step, block.count,
                   static_cast<int>(blocks));
    for (std::int64_t k = 0; k < blocks; ++k)
      store_block<index>(conv, block, scratch + k * block.count * kBlock, m_step, first + k);
  }
}

template <int... index>
WinogradKernels kernels_of(int wanted, std::integer_sequence<int, index...>) {
  constexpr WinogradKernels kAll[] = {{&transform_block<index>, &multiply_block<index>}...};
  return kAll[wanted];
}

}  // namespace

namespace TORCHALGO_ISA {

WinogradKernels winograd_kernels(int index) {
  return kernels_of(index, std::make_integer_sequence<int, std::size(kWinogradTiles)>());
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels

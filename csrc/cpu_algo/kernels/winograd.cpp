// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/winograd.h"

#include "cpu_algo/kernels/epilogue.h"
#include "cpu_algo/kernels/gemm_tile.h"

namespace torchalgo::kernels {
namespace {

using at::vec::fmadd;
using at::vec::fnmadd;

// One-dimensional transforms; a row of a tile at a time.
template <int m>
struct Transform;

template <>
struct Transform<2> {
  static void src(const Vec (&x)[4], Vec (&y)[4]) {
    y[0] = x[0] - x[2];
    y[1] = x[1] + x[2];
    y[2] = x[2] - x[1];
    y[3] = x[3] - x[1];
  }
  static void dst(const Vec (&x)[4], Vec (&y)[2]) {
    y[0] = x[0] + (x[1] + x[2]);
    y[1] = (x[1] - x[2]) + x[3];
  }
};

// Row k of the source transform holds the coefficients of the product of (x - p) over all points p
// but the k-th; the points are 0, +-a, +-b and infinity.
template <>
struct Transform<4> {
  static constexpr double kA = kWinogradNearPoint;
  static constexpr double kB = kWinogradFarPoint;
  static Vec constant(double value) { return Vec(static_cast<float>(value)); }

  static void src(const Vec (&x)[6], Vec (&y)[6]) {
    const Vec sum = constant(kA * kA + kB * kB);
    const Vec product = constant(kA * kA * kB * kB);
    y[0] = fmadd(product, x[0], fnmadd(sum, x[2], x[4]));
    y[5] = fmadd(product, x[1], fnmadd(sum, x[3], x[5]));
    const Vec even_a = fnmadd(constant(kB * kB), x[2], x[4]);
    const Vec odd_a = fnmadd(constant(kB * kB), x[1], x[3]);
    y[1] = fmadd(constant(kA), odd_a, even_a);
    y[2] = fnmadd(constant(kA), odd_a, even_a);
    const Vec even_b = fnmadd(constant(kA * kA), x[2], x[4]);
    const Vec odd_b = fnmadd(constant(kA * kA), x[1], x[3]);
    y[3] = fmadd(constant(kB), odd_b, even_b);
    y[4] = fnmadd(constant(kB), odd_b, even_b);
  }
  static void dst(const Vec (&x)[6], Vec (&y)[4]) {
    const Vec sum_a = x[1] + x[2];
    const Vec sum_b = x[3] + x[4];
    const Vec difference_a = x[1] - x[2];
    const Vec difference_b = x[3] - x[4];
    y[0] = x[0] + (sum_a + sum_b);
    y[1] = fmadd(constant(kB), difference_b, constant(kA) * difference_a);
    y[2] = fmadd(constant(kB * kB), sum_b, constant(kA * kA) * sum_a);
    y[3] = fmadd(constant(kB * kB * kB), difference_b,
                 fmadd(constant(kA * kA * kA), difference_a, x[5]));
  }
};

std::int64_t at_least(std::int64_t a, std::int64_t low) { return a < low ? low : a; }
std::int64_t at_most(std::int64_t a, std::int64_t high) { return a < high ? a : high; }

struct TilePosition {
  std::int64_t image, y, x;  // y, x: first output row and column
};
template <int m>
TilePosition position_of(const Winograd& conv, std::int64_t tile) {
  const std::int64_t row = tile / conv.tiles_w;
  return {row / conv.tiles_h, row % conv.tiles_h * m, tile % conv.tiles_w * m};
}

// Rows and columns [begin, end) of a source tile that lie inside the image.
struct Inside {
  std::int64_t y_begin, y_end, x_begin, x_end;
};

// src: element (0, 0) of the tile, which may lie outside the image; everything outside is zero.
template <int m, bool is_whole>
void transform_src(const float* src, std::int64_t row_step, const Inside& inside, float* v,
                   std::int64_t v_step) {
  constexpr int kSize = m + 2;
  Vec mid[kSize][kSize];
#pragma GCC unroll 6
  for (int x = 0; x < kSize; ++x) {
    Vec column[kSize];
    Vec transformed[kSize];
#pragma GCC unroll 6
    for (int y = 0; y < kSize; ++y) {
      const bool is_inside = is_whole || (y >= inside.y_begin && y < inside.y_end &&
                                          x >= inside.x_begin && x < inside.x_end);
      column[y] = is_inside ? Vec::loadu(src + y * row_step + x * kBlock) : Vec(0.0F);
    }
    Transform<m>::src(column, transformed);
#pragma GCC unroll 6
    for (int y = 0; y < kSize; ++y) mid[y][x] = transformed[y];
  }
#pragma GCC unroll 6
  for (int y = 0; y < kSize; ++y) {
    Vec transformed[kSize];
    Transform<m>::src(mid[y], transformed);
#pragma GCC unroll 6
    for (int x = 0; x < kSize; ++x) transformed[x].store(v + (y * kSize + x) * v_step);
  }
}

template <int m>
void transform_block(const Winograd& conv, const TileBlock& block, float* v, std::int64_t begin,
                     std::int64_t end) {
  constexpr int kSize = m + 2;
  const std::int64_t row_step = conv.w * kBlock;
  const std::int64_t v_step = winograd_v_step(conv.c_blocks, block.count);
  for (std::int64_t c = begin; c < end; ++c) {
    for (std::int64_t i = 0; i < block.count; ++i) {
      const TilePosition tile = position_of<m>(conv, block.begin + i);
      const std::int64_t y = tile.y - conv.pad_h;
      const std::int64_t x = tile.x - conv.pad_w;
      const Inside inside = {at_least(-y, 0), at_most(conv.h - y, kSize), at_least(-x, 0),
                             at_most(conv.w - x, kSize)};
      const bool is_whole = inside.y_begin == 0 && inside.y_end == kSize && inside.x_begin == 0 &&
                            inside.x_end == kSize;
      const float* src = conv.src + (tile.image * conv.c_blocks + c) * conv.h * row_step +
                         y * row_step + x * kBlock;
      float* out = v + (c * block.count + i) * kBlock;
      for (int lane = 0; lane < kBlock; lane += kLanes) {
        if (is_whole) {
          transform_src<m, true>(src + lane, row_step, inside, out + lane, v_step);
        } else {
          transform_src<m, false>(src + lane, row_step, inside, out + lane, v_step);
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
  std::int64_t rows, columns;  // inside the image, at most m
};

template <int m, bool is_whole>
void transform_dst(const float* src, std::int64_t step, const DstTile& tile, const Clamp& clamp) {
  constexpr int kSize = m + 2;
  Vec mid[m][kSize];
#pragma GCC unroll 6
  for (int x = 0; x < kSize; ++x) {
    Vec column[kSize];
    Vec transformed[m];
#pragma GCC unroll 6
    for (int y = 0; y < kSize; ++y) column[y] = Vec::loadu(src + (y * kSize + x) * step);
    Transform<m>::dst(column, transformed);
#pragma GCC unroll 4
    for (int y = 0; y < m; ++y) mid[y][x] = transformed[y];
  }
  const Vec bias = Vec::loadu(tile.bias);
  const Vec low(clamp.low);
  const Vec high(clamp.high);
#pragma GCC unroll 4
  for (int y = 0; y < m; ++y) {
    if (!is_whole && y >= tile.rows) return;
    Vec transformed[m];
    Transform<m>::dst(mid[y], transformed);
#pragma GCC unroll 4
    for (int x = 0; x < m; ++x) {
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
template <int m>
void store_block(const Winograd& conv, const TileBlock& block, const float* src, std::int64_t step,
                 std::int64_t k) {
  const std::int64_t row_step = conv.q * kBlock;
  const Clamp clamp = clamp_of(conv.activation);
  for (std::int64_t i = 0; i < block.count; ++i) {
    const TilePosition position = position_of<m>(conv, block.begin + i);
    const std::int64_t offset = (position.image * conv.k_blocks + k) * conv.p * row_step +
                                position.y * row_step + position.x * kBlock;
    DstTile tile = {conv.bias + k * kBlock,
                    conv.residual == nullptr ? nullptr : conv.residual + offset,
                    conv.dst + offset,
                    row_step,
                    at_most(conv.p - position.y, m),
                    at_most(conv.q - position.x, m)};
    for (int lane = 0; lane < kBlock; lane += kLanes) {
      DstTile part = tile;
      part.bias += lane;
      part.dst += lane;
      if (part.residual != nullptr) part.residual += lane;
      if (tile.rows == m && tile.columns == m) {
        transform_dst<m, true>(src + i * kBlock + lane, step, part, clamp);
      } else {
        transform_dst<m, false>(src + i * kBlock + lane, step, part, clamp);
      }
    }
    const std::int64_t pad_lanes = k + 1 == conv.k_blocks ? conv.pad_lanes : 0;
    if (pad_lanes != 0 || !is_clamp(conv.activation)) finish_tile(tile, conv.activation, pad_lanes);
  }
}

// M of one panel: one small GEMM per element. While one is computed, its share of the next
// element's weights is fetched into L2 (they lie behind this one's).
void multiply_panel(const Tile& prototype, int elements, std::int64_t v_step, std::int64_t m_step,
                    std::int64_t rows, int blocks) {
  const Strips strips(rows, TORCHALGO_ISA::max_tile_rows(blocks));
  const std::int64_t weights_step =
      std::int64_t{prototype.chunk_count} * prototype.depth * blocks * kBlock;
  Tile tile = prototype;
  tile.prefetch_lines =
      static_cast<int>((prototype.depth * blocks + strips.count - 1) / strips.count);
  for (int element = 0; element < elements; ++element) {
    const float* a = prototype.a + element * v_step;
    float* c = prototype.c + element * m_step;
    tile.b = prototype.b + element * weights_step;
    tile.prefetch = tile.b + weights_step;
    for (std::int64_t strip = 0; strip < strips.count; ++strip) {
      tile.a = a + strips.begin(strip) * kBlock;
      tile.c = c + strips.begin(strip) * kBlock;
      TORCHALGO_ISA::gemm_tile(strips.size(strip), blocks)(tile);
      tile.prefetch += std::int64_t{tile.prefetch_lines} * tile.chunk_count * 16;
    }
  }
}

template <int m>
void multiply_block(const Winograd& conv, const TileBlock& block, const float* v, float* scratch,
                    void* chunk_memory, std::int64_t begin, std::int64_t end) {
  constexpr int kElements = winograd_elements(m);
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
    tile.b = conv.weights + first * kBlock * kElements * conv.c_blocks * kBlock;
    tile.c = scratch;
    tile.c_row_stride = kBlock;
    tile.c_block_stride = block.count * kBlock;
    tile.columns = static_cast<int>(blocks * kBlock);
    multiply_panel(tile, kElements, winograd_v_step(conv.c_blocks, block.count), m_step,
                   block.count, static_cast<int>(blocks));
    for (std::int64_t k = 0; k < blocks; ++k)
      store_block<m>(conv, block, scratch + k * block.count * kBlock, m_step, first + k);
  }
}

}  // namespace

namespace TORCHALGO_ISA {

WinogradKernels winograd_kernels(int m) {
  if (m == 2) return {&transform_block<2>, &multiply_block<2>};
  return {&transform_block<4>, &multiply_block<4>};
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/gemm_tile.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cpu_algo/kernels/epilogue.h"

namespace torchalgo::kernels {
namespace {

constexpr int kMaxRows = 14;
#if defined(CPU_CAPABILITY_AVX512)
constexpr std::array<int, kMaxTileBlocks> kMaxRowsOf = {14, 14, 9, 6};
#else
constexpr std::array<int, kMaxTileBlocks> kMaxRowsOf = {6, 3, 2, 1};
#endif

// Whether an activation is applied to the accumulators. It is unrolled once for each of every tile,
// so a longer one runs over the stored tile, which lies in L1.
constexpr bool fits_registers(Activation activation) {
  return is_clamp(activation) || (kHasVectors && activation == Activation::kHardswish);
}

// The accumulators of rows x blocks. The arrays become registers: every index is a constant once
// the loops are unrolled.
template <int rows, int blocks>
struct Accumulators {
  static constexpr int kVectors = blocks * kBlockVectors;
  Vec acc[rows][kVectors];

  static std::int64_t offset(const Tile& tile, int row, int vector) {
    return row * tile.c_row_stride + vector / kBlockVectors * tile.c_block_stride +
           vector % kBlockVectors * kLanes;
  }

  template <class Function>
  void for_each(const Function& function) {
#pragma GCC unroll 14
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) function(acc[row][v], row, v);
    }
  }

  void start(const Tile& tile) {
    if (tile.accumulate) {
      for_each([&](Vec& x, int row, int v) { x = Vec::loadu(tile.c + offset(tile, row, v)); });
    } else if (tile.bias != nullptr) {
      for_each([&](Vec& x, int, int v) { x = Vec::loadu(tile.bias + v * kLanes); });
    } else if (tile.row_bias != nullptr) {
      for_each([&](Vec& x, int row, int) { x = Vec(tile.row_bias[row]); });
    } else {
      for_each([&](Vec& x, int, int) { x = Vec(0.0F); });
    }
  }

  // Rows are addressed as base[row / 3] + row % 3 strides: five pointers and one index register
  // reach 14 rows without further arithmetic.
  static constexpr int kBases = (rows + 2) / 3;

  void step(const float* const (&base)[kBases], std::int64_t stride, const float* b) {
    Vec weights[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) weights[v] = Vec::loadu(b + v * kLanes);
#pragma GCC unroll 14
    for (int row = 0; row < rows; ++row) {
      const Vec a(base[row / 3][row % 3 * stride]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[row][v] = at::vec::fmadd(a, weights[v], acc[row][v]);
    }
  }

  static void prefetch_rows(const float* const (&base)[kBases], std::int64_t stride,
                            std::int64_t ahead, int depth) {
    for (int k = 0; k < depth; k += 16) {
#pragma GCC unroll 14
      for (int row = 0; row < rows; ++row)
        __builtin_prefetch(base[row / 3] + row % 3 * stride + ahead + k, 0, 3);
    }
  }

  void multiply(const Tile& tile) {
    const std::int64_t stride = tile.a_row_stride;
    const float* prefetch = tile.prefetch;
    for (int chunk = 0; chunk < tile.chunk_count; ++chunk) {
      const float* base[kBases];
#pragma GCC unroll 5
      for (int i = 0; i < kBases; ++i) base[i] = tile.a + tile.chunks[chunk].a + 3 * i * stride;
      const float* b = tile.b + tile.chunks[chunk].b;
      for (int line = 0; line < tile.prefetch_lines; ++line, prefetch += 16)
        __builtin_prefetch(prefetch, 0, 2);
      if (tile.a_ahead != 0) prefetch_rows(base, stride, tile.a_ahead, tile.depth);
#pragma GCC unroll 4
      for (int k = 0; k < tile.depth; ++k) {
        step(base, stride, b);
        b += kVectors * kLanes;
#pragma GCC unroll 5
        for (int i = 0; i < kBases; ++i) ++base[i];
      }
    }
  }

  void finish(const Tile& tile) {
    if (tile.residual != nullptr) {
      for_each([&](Vec& x, int row, int v) {
        x = x + Vec::loadu(tile.residual + offset(tile, row, v));
      });
    }
    if (kHasVectors && tile.activation == Activation::kHardswish) {
      for_each([&](Vec& x, int, int) { x = activate<Activation::kHardswish>(x); });
    } else if (tile.activation != Activation::kNone && is_clamp(tile.activation)) {
      const Clamp clamp = clamp_of(tile.activation);
      const Vec low(clamp.low);
      const Vec high(clamp.high);
      for_each([&](Vec& x, int, int) { x = apply_clamp(x, low, high); });
    }
    for_each([&](Vec& x, int row, int v) { x.store(tile.c + offset(tile, row, v)); });
  }
};

[[gnu::noinline]] void activate_tile(const Tile& tile, int rows, int blocks) {
  with_activation(tile.activation, [&]<Activation activation>() {
    for (int v = 0; v < blocks * kBlockVectors; ++v) {
      activate_vectors<activation>(
          tile.c + v / kBlockVectors * tile.c_block_stride + v % kBlockVectors * kLanes,
          tile.c_row_stride, rows);
    }
  });
  const int pad_lanes = blocks * kBlock - tile.columns;
  if (pad_lanes == 0 || keeps_zero(tile.activation)) return;
  for (int row = 0; row < rows; ++row) {
    float* pixel = tile.c + row * tile.c_row_stride + (blocks - 1) * tile.c_block_stride;
    std::fill(pixel + kBlock - pad_lanes, pixel + kBlock, 0.0F);
  }
}

void copy_columns(const float* src, std::int64_t src_row, std::int64_t src_block, float* dst,
                  std::int64_t dst_row, std::int64_t dst_block, int rows, int columns) {
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; column += kLanes) {
      const int count = std::min(kLanes, columns - column);
      const int block = column / kBlock;
      const int lane = column % kBlock;
      Vec::loadu(src + row * src_row + block * src_block + lane, count)
          .store(dst + row * dst_row + block * dst_block + lane, count);
    }
  }
}

template <int rows, int blocks>
void run_whole(const Tile& tile) {
  Accumulators<rows, blocks> sums;
  sums.start(tile);
  sums.multiply(tile);
  sums.finish(tile);
  if (!fits_registers(tile.activation)) activate_tile(tile, rows, blocks);
}

// A tile of which some columns do not exist is computed in a copy that is whole.
[[gnu::noinline]] void run_masked(const Tile& tile, int rows, int blocks, GemmTile whole) {
  alignas(64) float c[kMaxRows * kMaxTileBlocks * kBlock];
  alignas(64) float residual[kMaxRows * kMaxTileBlocks * kBlock];
  const int width = blocks * kBlock;
  Tile copy = tile;
  copy.c = c;
  copy.c_row_stride = width;
  copy.c_block_stride = kBlock;
  copy.columns = width;
  std::fill(c, c + rows * width, 0.0F);
  if (tile.accumulate) {
    copy_columns(tile.c, tile.c_row_stride, tile.c_block_stride, c, width, kBlock, rows,
                 tile.columns);
  }
  if (tile.residual != nullptr) {
    std::fill(residual, residual + rows * width, 0.0F);
    copy_columns(tile.residual, tile.c_row_stride, tile.c_block_stride, residual, width, kBlock,
                 rows, tile.columns);
    copy.residual = residual;
  }
  whole(copy);
  copy_columns(c, width, kBlock, tile.c, tile.c_row_stride, tile.c_block_stride, rows,
               tile.columns);
}

template <int rows, int blocks>
void run_tile(const Tile& tile) {
  if (tile.columns == blocks * kBlock || tile.pad_lanes) {
    run_whole<rows, blocks>(tile);
  } else {
    run_masked(tile, rows, blocks, &run_whole<rows, blocks>);
  }
}

template <int rows, int blocks>
constexpr GemmTile tile_or_null() {
  if constexpr (rows <= kMaxRowsOf[blocks - 1]) {
    return &run_tile<rows, blocks>;
  } else {
    return nullptr;
  }
}

template <int blocks, int... index>
constexpr std::array<GemmTile, kMaxRows> tiles_of(std::integer_sequence<int, index...>) {
  return {tile_or_null<index + 1, blocks>()...};
}

template <int blocks>
constexpr std::array<GemmTile, kMaxRows> kTiles =
    tiles_of<blocks>(std::make_integer_sequence<int, kMaxRows>());

}  // namespace

namespace TORCHALGO_ISA {

GemmTile gemm_tile(int rows, int blocks) {
  const GemmTile* const tiles[] = {kTiles<1>.data(), kTiles<2>.data(), kTiles<3>.data(),
                                   kTiles<4>.data()};
  return tiles[blocks - 1][rows - 1];
}

int max_tile_rows(int blocks) { return kMaxRowsOf[blocks - 1]; }

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels

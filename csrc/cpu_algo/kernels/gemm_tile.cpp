// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/gemm_tile.h"

#include <algorithm>

#include "cpu_algo/kernels/gemm_accumulators.h"
#include "cpu_algo/kernels/instances.h"

namespace torchalgo::kernels {
namespace {

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

template <int rows, int blocks, bool is_half>
void run_whole(const Tile& tile) {
  Accumulators<rows, blocks, is_half> sums;
  if (tile.is_far) sums.fetch_ends(tile);
  sums.start(tile);
  sums.multiply(tile);
  sums.finish(tile);
  if (!fits_registers(tile.activation)) activate_tile(tile, rows, blocks);
}

// Computes a tile with missing columns in a copy that has all columns.
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

// Returns the part of a tile that begins at a row.
Tile from_row(const Tile& tile, int row) {
  Tile part = tile;
  part.a += row * tile.a_row_stride;
  part.c += row * tile.c_row_stride;
  if (tile.residual != nullptr) part.residual += row * tile.c_row_stride;
  if (tile.row_bias != nullptr) part.row_bias += row;
  return part;
}

template <int blocks>
void run_parts(const Tile& tile, int rows);

template <int rows, int blocks>
struct TileRunner {
  static constexpr int kIndex = tile_index(rows, blocks);

  static void run(const Tile& tile) {
    const int missing = blocks * kBlock - tile.columns;
    note_instance(kTiles, kIndex);
    if constexpr (rows == 1 || has_instance(kTiles, kIndex))
      run_rows(tile, missing);
    else
      run_parts<blocks>(tile, rows);
  }

 private:
  static void run_rows(const Tile& tile, int missing) {
    GemmTile whole = &run_whole<rows, blocks, false>;
    bool has_half = false;  // computes half of the last block
    if (missing >= kHalf) {
      note_instance(kHalfTiles, kIndex);
      if constexpr (has_instance(kHalfTiles, kIndex)) {
        whole = &run_whole<rows, blocks, true>;
        has_half = true;
      }
    }
    if (missing == 0 || tile.pad_lanes) {
      whole(tile);
      // A NaN or an infinity times a missing column's zero weight is NaN, so these lanes are
      // cleared. A whole missing half of a block is not computed at all.
      if (missing != 0 && (missing != kHalf || !has_half || !keeps_zero(tile.activation)))
        clear_lanes(tile.c + (blocks - 1) * tile.c_block_stride, tile.c_row_stride, rows,
                    kBlock - missing);
    } else {
      run_masked(tile, rows, blocks, whole);
    }
  }
};

// Computes a tile by those with fewer rows that an emitted program has. They have the same bits.
// Which tiles conv_chain needs depends on the thread that takes a block, so one may be missing.
template <int blocks>
[[gnu::noinline]] void run_parts(const Tile& tile, int rows) {
  for (int row = 0; row < rows;) {
    int count = rows - row;
    while (count > 1 && !has_instance(kTiles, tile_index(count, blocks))) --count;
    kRunners<TileRunner, blocks>[count - 1](from_row(tile, row));
    row += count;
  }
}

}  // namespace

namespace TORCHALGO_ISA {

GemmTile gemm_tile(int rows, int blocks) {
  const GemmTile* const tiles[] = {kRunners<TileRunner, 1>.data(), kRunners<TileRunner, 2>.data(),
                                   kRunners<TileRunner, 3>.data(), kRunners<TileRunner, 4>.data()};
  return tiles[blocks - 1][rows - 1];
}

int max_tile_rows(int blocks) { return kMaxRowsOf[blocks - 1]; }

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The register-tiled micro-kernel under every GEMM-like convolution:
//   C[row][column] = epilogue(sum over k of A[row][k] * B[k][column]) for up to 14 rows (pixels or
//   tiles) and 1..4 blocks of 16 columns (output channels). A is read in place. Its rows have a
//   constant stride. K is divided into chunks that a table lists: one per channel block for 1x1 and
//   Winograd, one per tap and block for r x s. B is packed.

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// A part of K that is contiguous in A: `depth` floats (see Tile) at both offsets.
struct Chunk {
  std::int32_t a = 0;  // floats from Tile::a
  std::int32_t b = 0;  // floats from Tile::b
};

/// Columns per block: C is stored in blocks of 16 columns, as in nChw16c.
inline constexpr int kTileBlock = 16;
inline constexpr int kMaxTileBlocks = 4;

/// One call of the micro-kernel. Strides and offsets count floats.
struct Tile {
  const float* a = nullptr;       // row 0
  std::int64_t a_row_stride = 0;  // between rows
  const Chunk* chunks = nullptr;
  int chunk_count = 0;
  int depth = 0;             // K of each chunk
  const float* b = nullptr;  // k of a chunk: blocks * 16 floats, contiguous
  float* c = nullptr;
  std::int64_t c_row_stride = 0;  // 16 in nChw16c, channels in nhwc
  std::int64_t c_block_stride =
      0;                        // between blocks of 16 columns: h * w * 16 in nChw16c, 16 in nhwc
  bool accumulate = false;      // start from C (K in several calls), then the bias is not added
  const float* bias = nullptr;  // per column, whole blocks, or null
  const float* row_bias = nullptr;  // per row instead, or null
  // The following fields are for the last call of a K-blocked sum only.
  const float* residual = nullptr;  // laid out as c, or null
  Activation activation = Activation::kNone;
  /// The number of columns, <= blocks * 16. If it ends within a block, lanes beyond it are masked
  /// and not touched. With `pad_lanes`, the block is stored as a whole with zeros in these lanes.
  /// B, bias and residual must be zero there.
  int columns = 0;
  bool pad_lanes = false;
  /// True if C and residual lie beyond L2, as tensors of a network do, in contrast to scratch. They
  /// are then prefetched at the beginning.
  bool is_far = false;
  /// The start of a prefetch into L2, `prefetch_lines` cache lines per chunk: of the next panel, or
  /// of the source.
  const float* prefetch = nullptr;
  int prefetch_lines = 0;
  /// The distance in floats at which A is prefetched ahead of every row, for the next tile if A is
  /// not in the caches. 0 for no prefetch.
  std::int64_t a_ahead = 0;
};

using GemmTile = void (*)(const Tile&);

// Returns the micro-kernel for exactly `rows` x `blocks`, 1 <= rows <= max_tile_rows(blocks).
TORCHALGO_DECLARE_KERNEL(GemmTile gemm_tile(int rows, int blocks))

// Returns the most rows that the registers hold with this number of blocks: AVX-512 14 (1 or 2), 9,
// 6; AVX2 6, 3, 2, 1.
TORCHALGO_DECLARE_KERNEL(int max_tile_rows(int blocks))

/// A division of `rows` rows into strips that are as equal as possible: 49 -> 13 + 12 + 12 + 12.
struct Strips {
  std::int64_t rows = 0;
  std::int64_t count = 0;
  constexpr Strips(std::int64_t of, int max_rows)
      : rows(of), count((of + max_rows - 1) / max_rows) {}
  [[nodiscard]] constexpr std::int64_t begin(std::int64_t strip) const {
    return rows * strip / count;
  }
  [[nodiscard]] constexpr int size(std::int64_t strip) const {
    return static_cast<int>(begin(strip + 1) - begin(strip));
  }
};

}  // namespace torchalgo::kernels

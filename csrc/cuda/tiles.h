// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

// The assignment of a batch of transposes to the threads of a GPU. It is pure arithmetic, so that a
// test can run every thread of small problems on the CPU.

#ifdef __CUDACC__
#define TORCHALGO_HOST_DEVICE __host__ __device__
#else
#define TORCHALGO_HOST_DEVICE
#endif

namespace torchalgo::cuda {

/// A transpose of src [images, rows, cols] to dst [images, cols, rows], both dense. nchw -> nhwc
/// has rows = c and cols = d * h * w; nhwc -> nchw the reverse.
struct Transpose {
  std::int64_t images = 1, rows = 1, cols = 1;
};

inline constexpr int kTileThreads = 256;    // of a block
inline constexpr int kTileElements = 4096;  // of a large tile
inline constexpr int kTileShortSide = 64;   // of a large tile at most, in elements
// A GPU has about 100 multiprocessors. A problem of fewer large tiles gets small ones: a quarter of
// the elements, and half the short side.
inline constexpr std::int64_t kTilesThatFillAGpu = 256;

/// The division of a Transpose into tiles. A block reads a tile by rows of src into shared memory
/// and writes it by rows of dst, so that both accesses are coalesced. Sides are powers of two that
/// fit the sizes: 3 channels of an input image make tiles of 4 x 1024.
struct Tiling {
  Transpose problem;
  int row_bits = 0, col_bits = 0;     // a tile has 2^row_bits x 2^col_bits elements of src
  int read_bits = 0, write_bits = 0;  // 2^bits elements are read and written at a time
  int pitch = 0;                      // elements of shared memory from one row to the next
  std::int64_t row_tiles = 1, col_tiles = 1;

  [[nodiscard]] TORCHALGO_HOST_DEVICE std::int64_t tile_count() const {
    return problem.images * row_tiles * col_tiles;
  }
  /// Returns the elements of shared memory that a block needs.
  [[nodiscard]] TORCHALGO_HOST_DEVICE int shared_elements() const { return pitch << row_bits; }
};

[[nodiscard]] inline int bits_for(std::int64_t count, int most) {
  int bits = 0;
  while (bits < most && (std::int64_t{1} << bits) < count) ++bits;
  return bits;
}

/// Returns the tiling of `problem`.
/// @param element_bytes  2 or 4, the size of an element of src, which is also that in shared
/// memory.
/// @param read_bits, write_bits  2^read_bits divides cols, 2^write_bits divides rows, and src and
/// dst are aligned to as many elements.
[[nodiscard]] inline Tiling make_tiling(Transpose problem, int element_bytes, int read_bits,
                                        int write_bits) {
  const std::int64_t elements = problem.images * problem.rows * problem.cols;
  const bool is_small = elements / kTileElements < kTilesThatFillAGpu;
  const int short_bits = bits_for(kTileShortSide, 30) - (is_small ? 1 : 0);
  const int all_bits = bits_for(kTileElements, 30) - (is_small ? 2 : 0);
  Tiling tiling;
  tiling.problem = problem;
  if (problem.rows <= problem.cols) {
    tiling.row_bits = bits_for(problem.rows, short_bits);
    tiling.col_bits = bits_for(problem.cols, all_bits - tiling.row_bits);
  } else {
    tiling.col_bits = bits_for(problem.cols, short_bits);
    tiling.row_bits = bits_for(problem.rows, all_bits - tiling.col_bits);
  }
  tiling.read_bits = read_bits;
  tiling.write_bits = write_bits;
  // An odd number of 4-byte words: a column of the tile then lies in different banks.
  const int padding = 4 / element_bytes;
  tiling.pitch = (1 << tiling.col_bits) < padding ? padding : (1 << tiling.col_bits) + padding;
  tiling.row_tiles = ((problem.rows - 1) >> tiling.row_bits) + 1;
  tiling.col_tiles = ((problem.cols - 1) >> tiling.col_bits) + 1;
  return tiling;
}

/// One tile: its position, and its size within the matrix.
struct Tile {
  std::int64_t src_offset = 0;  // of its first element
  std::int64_t dst_offset = 0;
  int rows = 0, cols = 0;  // of src
};

/// Returns a / b. A GPU divides 32-bit numbers several times faster than 64-bit ones.
[[nodiscard]] inline TORCHALGO_HOST_DEVICE std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if ((a | b) >> 32 != 0) return a / b;
  return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
}

[[nodiscard]] inline TORCHALGO_HOST_DEVICE Tile tile_at(const Tiling& tiling, std::int64_t index) {
  const Transpose& problem = tiling.problem;
  const std::int64_t per_image = tiling.row_tiles * tiling.col_tiles;
  const std::int64_t image = quotient(index, per_image);
  const std::int64_t in_image = index - image * per_image;
  // Neighbours in src follow each other, so that a cache line that two tiles share is still in the
  // cache.
  const std::int64_t row_tile = quotient(in_image, tiling.col_tiles);
  const std::int64_t row = row_tile << tiling.row_bits;
  const std::int64_t col = (in_image - row_tile * tiling.col_tiles) << tiling.col_bits;
  const std::int64_t base = image * problem.rows * problem.cols;
  const std::int64_t rows_left = problem.rows - row, cols_left = problem.cols - col;
  Tile tile;
  tile.src_offset = base + row * problem.cols + col;
  tile.dst_offset = base + col * problem.rows + row;
  tile.rows =
      static_cast<int>(rows_left < (1 << tiling.row_bits) ? rows_left : 1 << tiling.row_bits);
  tile.cols =
      static_cast<int>(cols_left < (1 << tiling.col_bits) ? cols_left : 1 << tiling.col_bits);
  return tile;
}

/// One access of one thread: 2^read_bits (or 2^write_bits) elements that are adjacent in memory. In
/// shared memory they are 1 (or pitch) apart.
struct Access {
  bool exists = false;
  std::int64_t offset = 0;  // of its first element, in src or dst
  int shared = 0;           // the same in shared memory
};

/// Returns the number of accesses that each thread makes for a tile.
[[nodiscard]] inline TORCHALGO_HOST_DEVICE int read_steps(const Tiling& tiling, const Tile& tile) {
  const int per_row = 1 << (tiling.col_bits - tiling.read_bits);
  return (tile.rows * per_row + kTileThreads - 1) / kTileThreads;
}
[[nodiscard]] inline TORCHALGO_HOST_DEVICE int write_steps(const Tiling& tiling, const Tile& tile) {
  const int per_row = 1 << (tiling.row_bits - tiling.write_bits);
  return (tile.cols * per_row + kTileThreads - 1) / kTileThreads;
}

[[nodiscard]] inline TORCHALGO_HOST_DEVICE Access read_access(const Tiling& tiling,
                                                              const Tile& tile, int step,
                                                              int thread) {
  const int index = step * kTileThreads + thread;
  const int bits = tiling.col_bits - tiling.read_bits;
  const int row = index >> bits;
  const int col = (index & ((1 << bits) - 1)) << tiling.read_bits;
  Access access;
  access.exists = row < tile.rows && col < tile.cols;
  access.offset = tile.src_offset + row * tiling.problem.cols + col;
  access.shared = row * tiling.pitch + col;
  return access;
}

[[nodiscard]] inline TORCHALGO_HOST_DEVICE Access write_access(const Tiling& tiling,
                                                               const Tile& tile, int step,
                                                               int thread) {
  const int index = step * kTileThreads + thread;
  const int bits = tiling.row_bits - tiling.write_bits;
  const int col = index >> bits;
  const int row = (index & ((1 << bits) - 1)) << tiling.write_bits;
  Access access;
  access.exists = col < tile.cols && row < tile.rows;
  access.offset = tile.dst_offset + col * tiling.problem.rows + row;
  access.shared = row * tiling.pitch + col;
  return access;
}

/// Returns the largest power of two, as bits and at most `most`, that divides `size` and to which
/// `address` is aligned in elements of `element_bytes`.
[[nodiscard]] inline int vector_bits(std::int64_t size, std::uintptr_t address, int element_bytes,
                                     int most) {
  const std::uintptr_t elements = static_cast<std::uintptr_t>(1) << most;
  return size % static_cast<std::int64_t>(elements) == 0 &&
                 address % (elements * static_cast<std::uintptr_t>(element_bytes)) == 0
             ? most
             : 0;
}

/// Returns the same transposes with fewer, larger images if a side is 1, in which case no element
/// moves.
[[nodiscard]] inline Transpose simplified(Transpose problem) {
  if (problem.rows != 1 && problem.cols != 1) return problem;
  return {1, 1, problem.images * problem.rows * problem.cols};
}

}  // namespace torchalgo::cuda

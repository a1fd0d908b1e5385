// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/winograd_backward_filter.h"

#include <cstddef>

#include "cpu_algo/kernels/outer_product.h"

namespace torchalgo::kernels {
namespace {

constexpr int kSize = 6;    // elements of a transform
constexpr int kPixels = 4;  // of diff_dst, along an axis of a tile
constexpr int kTaps = 3;
constexpr int kElements = kSize * kSize;
constexpr WinogradPoints kPoints = winograd_points(kSize);
static_assert(kPoints.pairs == 2);

Vec constant(double value) { return Vec(static_cast<float>(value)); }

// Evaluates the polynomial with these four coefficients at the points: 0, the pairs +-p, infinity.
[[gnu::always_inline]] inline void transform(const Vec (&x)[kPixels], Vec (&y)[kSize]) {
  y[0] = x[0];
  y[kSize - 1] = x[kPixels - 1];
#pragma GCC unroll 2
  for (int pair = 0; pair < kPoints.pairs; ++pair) {
    const double p = kPoints.p[pair];
    const Vec even = fmadd(constant(p * p), x[2], x[0]);
    const Vec odd = fmadd(constant(p * p), x[3], x[1]);
    y[2 * pair + 1] = fmadd(constant(p), odd, even);
    y[2 * pair + 2] = fnmadd(constant(p), odd, even);
  }
}

// Returns the product of the differences of point p of a pair to the other finite points.
constexpr double scale_of(int pair) {
  const double square = kPoints.p[pair] * kPoints.p[pair];
  const double other = kPoints.p[1 - pair] * kPoints.p[1 - pair];
  return 2 * square * (square - other);
}

// Applies the transpose of the filter's transform. Its row i holds the i-th powers of the points,
// divided by the products of their differences.
[[gnu::always_inline]] inline void transform_back(const Vec (&x)[kSize], Vec (&y)[kTaps]) {
  constexpr double kSquares = kPoints.p[0] * kPoints.p[0] * kPoints.p[1] * kPoints.p[1];
  y[0] = x[0] * constant(1 / kSquares);
  y[1] = Vec(0.0F);
  y[2] = x[kSize - 1];
#pragma GCC unroll 2
  for (int pair = 0; pair < kPoints.pairs; ++pair) {
    const double p = kPoints.p[pair];
    const double scale = scale_of(pair);
    const Vec sum = x[2 * pair + 1] + x[2 * pair + 2];
    const Vec difference = x[2 * pair + 1] - x[2 * pair + 2];
    y[0] = fmadd(constant(1 / scale), sum, y[0]);
    y[1] = fmadd(constant(p / scale), difference, y[1]);
    y[2] = fmadd(constant(p * p / scale), sum, y[2]);
  }
}

// A tile of one block of channels of diff_dst.
struct DstTile {
  const float* at;
  std::int64_t row_step, pixel_step;
  std::int64_t rows, columns;  // inside the image, at most 4 each
};

template <bool is_whole>
void transform_vector(const float* at, const DstTile& tile, float* e, std::int64_t e_step) {
  Vec mid[kSize][kPixels];
#pragma GCC unroll 4
  for (int x = 0; x < kPixels; ++x) {
    Vec column[kPixels];
    Vec transformed[kSize];
#pragma GCC unroll 4
    for (int y = 0; y < kPixels; ++y) {
      const bool is_inside = is_whole || (y < tile.rows && x < tile.columns);
      column[y] = is_inside ? Vec::loadu(at + y * tile.row_step + x * tile.pixel_step) : Vec(0.0F);
    }
    transform(column, transformed);
#pragma GCC unroll 6
    for (int y = 0; y < kSize; ++y) mid[y][x] = transformed[y];
  }
#pragma GCC unroll 6
  for (int y = 0; y < kSize; ++y) {
    Vec transformed[kSize];
    transform(mid[y], transformed);
#pragma GCC unroll 6
    for (int x = 0; x < kSize; ++x) transformed[x].store(e + (y * kSize + x) * e_step);
  }
}

void transform_tile(const DstTile& tile, float* e, std::int64_t e_step) {
  const bool is_whole = tile.rows == kPixels && tile.columns == kPixels;
  for (int lane = 0; lane < kBlock; lane += kLanes) {
    if (is_whole) {
      transform_vector<true>(tile.at + lane, tile, e + lane, e_step);
    } else {
      transform_vector<false>(tile.at + lane, tile, e + lane, e_step);
    }
  }
}

// Transforms a tile of a block that has only `lanes` channels in memory. The others are zero.
void transform_lanes(const DstTile& tile, std::int64_t lanes, float* e, std::int64_t e_step) {
  float copy[kPixels * kPixels * kBlock] = {};
  for (std::int64_t y = 0; y < tile.rows; ++y) {
    for (std::int64_t x = 0; x < tile.columns; ++x) {
      const float* const from = tile.at + y * tile.row_step + x * tile.pixel_step;
      for (std::int64_t lane = 0; lane < lanes; ++lane)
        copy[(y * kPixels + x) * kBlock + lane] = from[lane];
    }
  }
  transform_tile({copy, kPixels * kBlock, kBlock, kPixels, kPixels}, e, e_step);
}

std::int64_t at_most(std::int64_t a, std::int64_t high) { return a < high ? a : high; }

// Returns tile `i` of the first block of channels.
DstTile tile_of(const WinogradBackwardFilter& conv, std::int64_t i) {
  const std::int64_t row = i / conv.tiles_w;
  const std::int64_t y = row % conv.tiles_h * kPixels, x = i % conv.tiles_w * kPixels;
  const std::int64_t pixel = conv.side.pixel;
  return {conv.diff_dst + row / conv.tiles_h * conv.side.image + (y * conv.q + x) * pixel,
          conv.q * pixel, pixel, at_most(conv.p - y, kPixels), at_most(conv.q - x, kPixels)};
}

void transform_block(const WinogradBackwardFilter& conv, const TileBlock& block, float* e,
                     std::int64_t begin, std::int64_t end) {
  const std::int64_t e_step = winograd_v_step(conv.k_blocks, block.count);
  for (std::int64_t k = begin; k < end; ++k) {
    const bool is_last = k == conv.k_blocks - 1 && conv.side.last_lanes < kBlock;
    for (std::int64_t i = 0; i < block.count; ++i) {
      DstTile tile = tile_of(conv, block.begin + i);
      tile.at += k * conv.side.block;
      float* const out = e + (k * block.count + i) * kBlock;
      if (is_last) {
        transform_lanes(tile, conv.side.last_lanes, out, e_step);
      } else {
        transform_tile(tile, out, e_step);
      }
    }
  }
}

// Adds the products of the tiles [begin, end) of one element to U.
void multiply_element(const FilterBlocks& blocks, OuterProduct product, std::int64_t block_step) {
  const std::int64_t width = blocks.c_end - blocks.c_begin;
  const std::int64_t parts = (width + kMaxOuterBlocks - 1) / kMaxOuterBlocks;
  const float* const a = product.a.at;
  const float* const b = product.b.at;
  float* const c = product.c;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = width * part / parts, end = width * (part + 1) / parts;
    product.b.at = b + (blocks.c_begin + begin) * block_step;
    for (std::int64_t k = blocks.k_begin; k < blocks.k_end; ++k) {
      product.a.at = a + k * block_step;
      product.c = c + ((k - blocks.k_begin) * width + begin) * kBlock * kBlock;
      add_outer_product(product, kBlock, static_cast<int>(end - begin));
    }
  }
}

void multiply(const WinogradBackwardFilter& conv, const FilterBlocks& blocks, std::int64_t tiles,
              const float* v, const float* e, float* u, bool is_first) {
  constexpr std::int64_t kMostTiles = 128;  // of a panel of B, so that it stays in L1
  const std::int64_t v_step = winograd_v_step(conv.c_blocks, tiles);
  const std::int64_t e_step = winograd_v_step(conv.k_blocks, tiles);
  const std::int64_t u_step = winograd_u_step(blocks);
  const std::int64_t parts = (tiles + kMostTiles - 1) / kMostTiles;
  OuterProduct product;
  product.b_block = tiles * kBlock;
  product.c_block = kBlock * kBlock;
  for (int element = 0; element < kElements; ++element) {
    product.c = u + element * u_step;
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t begin = tiles * part / parts;
      product.pixels = tiles * (part + 1) / parts - begin;
      product.a.at = e + element * e_step + begin * kBlock;
      product.b.at = v + element * v_step + begin * kBlock;
      product.accumulate = part > 0 || !is_first;
      multiply_element(blocks, product, tiles * kBlock);
    }
  }
}

// The U of several parts of the tiles, which are added up.
struct SumParts {
  std::int64_t parts, step;
  [[gnu::always_inline]] Vec load(const float* at) const {
    Vec sum = Vec::loadu(at);
    for (std::int64_t part = 1; part < parts; ++part) sum = sum + Vec::loadu(at + part * step);
    return sum;
  }
};

// Transforms the elements of one vector of input channels back and writes [taps][lanes].
void transform_sums(const SumParts& sums, const float* u, std::int64_t u_step, float* out) {
  Vec mid[kTaps][kSize];
#pragma GCC unroll 6
  for (int x = 0; x < kSize; ++x) {
    Vec column[kSize];
    Vec transformed[kTaps];
#pragma GCC unroll 6
    for (int y = 0; y < kSize; ++y) column[y] = sums.load(u + (y * kSize + x) * u_step);
    transform_back(column, transformed);
#pragma GCC unroll 3
    for (int y = 0; y < kTaps; ++y) mid[y][x] = transformed[y];
  }
#pragma GCC unroll 3
  for (int y = 0; y < kTaps; ++y) {
    Vec transformed[kTaps];
    transform_back(mid[y], transformed);
#pragma GCC unroll 3
    for (int x = 0; x < kTaps; ++x) transformed[x].store(out + (y * kTaps + x) * kBlock);
  }
}

void finish(const WinogradBackwardFilter& conv, const FilterBlocks& blocks, const float* u,
            std::int64_t parts, std::int64_t part_step, std::int64_t first_c) {
  constexpr int kArea = kTaps * kTaps;
  const std::int64_t u_step = winograd_u_step(blocks), width = blocks.c_end - blocks.c_begin;
  for (std::int64_t k = blocks.k_begin * kBlock; k < at_most(blocks.k_end * kBlock, conv.k); ++k) {
    for (std::int64_t block = 0; block < width; ++block) {
      const std::int64_t row = (k / kBlock - blocks.k_begin) * width + block;
      const float* const from = u + row * kBlock * kBlock + k % kBlock * kBlock;
      alignas(64) float taps[kArea * kBlock];
      for (int lane = 0; lane < kBlock; lane += kLanes)
        transform_sums({parts, part_step}, from + lane, u_step, taps + lane);
      const std::int64_t c = first_c + block * kBlock, lanes = at_most(conv.c - c, kBlock);
      float* to = conv.diff_weights + (k * conv.c + c) * kArea;
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
#pragma GCC unroll 9
        for (int tap = 0; tap < kArea; ++tap) *to++ = taps[tap * kBlock + lane];
      }
    }
  }
}

}  // namespace

namespace TORCHALGO_ISA {

WinogradBackwardFilterKernels winograd_backward_filter_kernels() {
  return {&transform_block, &multiply, &finish};
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels

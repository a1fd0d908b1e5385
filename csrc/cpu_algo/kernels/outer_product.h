// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The register-tiled micro-kernel of gradients with respect to weights:
//   C[row][column] += sum over pixels of A[pixel][row] * B[pixel][column].
// Rows are adjacent in A, and so are the 16 columns of a block in B. Both tensors are read where
// they are, since a pixel of nChw16c holds 16 channels side by side. Only sources of this folder
// may include it, as epilogue.h.

#include <cstdint>

#include "cpu_algo/kernels/epilogue.h"

namespace torchalgo::kernels {
namespace {

#if defined(__AVX512F__)
constexpr int kMaxOuterBlocks = 3;  // 8 x 3 accumulators of 32 registers
constexpr int max_outer_rows(int blocks) { return blocks == 1 ? 16 : blocks == 2 ? 12 : 8; }
#elif defined(__AVX2__)
constexpr int kMaxOuterBlocks = 1;  // 6 x 2 accumulators of 16 registers
constexpr int max_outer_rows(int) { return 6; }
#else
constexpr int kMaxOuterBlocks = 1;
constexpr int max_outer_rows(int) { return 3; }
#endif

/// One side of the product: the floats from an image to the next, from a line of pixels to the
/// next, and from a pixel to the next one in its line.
struct OuterSide {
  const float* at = nullptr;
  std::int64_t image = 0, line = 0, pixel = kBlock;
};

/// The pixels, and where the result lies. Steps count floats.
struct OuterProduct {
  OuterSide a, b;
  std::int64_t b_block = 0;                        // from one block of 16 columns of B to the next
  std::int64_t images = 1, lines = 1, pixels = 0;  // lines per image, pixels per line
  float* c = nullptr;
  std::int64_t c_row = kBlock, c_block = 0;
  bool accumulate = false;  // start from C, else from zero
};

template <int rows, int blocks>
[[gnu::noinline]] void run_outer_product(const OuterProduct& product) {
  constexpr int kVectors = blocks * kBlockVectors;
  const auto c_at = [&](int row, int v) {
    return product.c + row * product.c_row + v / kBlockVectors * product.c_block +
           v % kBlockVectors * kLanes;
  };
  Vec sums[rows][kVectors];
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      sums[row][v] = product.accumulate ? Vec::loadu(c_at(row, v)) : Vec(0.0F);
  }
  const std::int64_t a_step = product.a.pixel, b_step = product.b.pixel;
  for (std::int64_t i = 0; i < product.images * product.lines; ++i) {
    const std::int64_t image = i / product.lines, line = i % product.lines;
    const float* a = product.a.at + image * product.a.image + line * product.a.line;
    const float* b[blocks];
    b[0] = product.b.at + image * product.b.image + line * product.b.line;
#pragma GCC unroll 4
    for (int block = 1; block < blocks; ++block) b[block] = b[block - 1] + product.b_block;
#pragma GCC unroll 2
    for (std::int64_t pixel = 0; pixel < product.pixels; ++pixel) {
      Vec columns[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        columns[v] = Vec::loadu(b[v / kBlockVectors] + v % kBlockVectors * kLanes);
#pragma GCC unroll 16
      for (int row = 0; row < rows; ++row) {
        const Vec value(a[row]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[row][v] = fmadd(value, columns[v], sums[row][v]);
      }
      a += a_step;
#pragma GCC unroll 4
      for (int block = 0; block < blocks; ++block) b[block] += b_step;
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[row][v].store(c_at(row, v));
  }
}

using RunOuterProduct = void (*)(const OuterProduct&);

template <int blocks, int... index>
constexpr RunOuterProduct outer_product_of(int rows, std::integer_sequence<int, index...>) {
  constexpr RunOuterProduct kAll[] = {&run_outer_product<index + 1, blocks>...};
  return kAll[rows - 1];
}

/// Returns the micro-kernel for `rows` <= max_outer_rows(blocks).
template <int blocks>
constexpr RunOuterProduct outer_product_of(int rows) {
  return outer_product_of<blocks>(rows, std::make_integer_sequence<int, max_outer_rows(blocks)>());
}

inline RunOuterProduct outer_product_of(int rows, int blocks) {
  if constexpr (kMaxOuterBlocks == 3) {
    if (blocks == 3) return outer_product_of<3>(rows);
    if (blocks == 2) return outer_product_of<2>(rows);
  }
  return outer_product_of<1>(rows);
}

/// Adds the product of `rows` adjacent rows and `blocks` <= kMaxOuterBlocks blocks to C. The rows
/// are divided as evenly as the registers allow: 16 into 6 + 5 + 5 with AVX2.
inline void add_outer_product(OuterProduct product, int rows, int blocks) {
  const int most = max_outer_rows(blocks);
  const int parts = (rows + most - 1) / most;
  for (int part = 0; part < parts; ++part) {
    const int size = (rows + parts - 1 - part) / parts;
    outer_product_of(size, blocks)(product);
    product.a.at += size;
    product.c += size * product.c_row;
  }
}

}  // namespace
}  // namespace torchalgo::kernels

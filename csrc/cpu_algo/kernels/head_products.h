// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Products of the small matrices of attention, and copies of matrices with any strides. Only
// sources of this folder may include it, as epilogue.h: everything is in an anonymous namespace.

#include <algorithm>
#include <cstdint>

#include "cpu_algo/kernels/attention.h"
#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels {
namespace {

// The rows and vectors of a register tile. Their products, the vectors of B and one value of A fit
// into the registers: 32 of AVX-512, 16 of the others.
constexpr int kRows = 6;
constexpr int kVectors = kNativeLanes == 16 ? 4 : kParts == 1 ? 2 : 1;

// C[row][column] = factor[row] * sum over k of A[row][k] * B[k][column]. Strides count floats.
struct Product {
  const float* a;
  std::int64_t a_row, a_column;
  const float* b;
  std::int64_t b_row;
  std::int64_t depth;
  float* c;
  std::int64_t c_row;
  const float* factors;
};

template <int rows, int vectors>
void multiply_tile(const Product& product) {
  Vec sums[rows][vectors];
#pragma GCC unroll 6
  for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sums[row][v] = Vec(0.0F);
  }
  const float* a = product.a;
  const float* b = product.b;
  for (std::int64_t k = 0; k < product.depth; ++k) {
    Vec columns[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) columns[v] = Vec::loadu(b + v * kLanes);
#pragma GCC unroll 6
    for (int row = 0; row < rows; ++row) {
      const Vec x(a[row * product.a_row]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[row][v] = fmadd(x, columns[v], sums[row][v]);
    }
    a += product.a_column;
    b += product.b_row;
  }
#pragma GCC unroll 6
  for (int row = 0; row < rows; ++row) {
    const Vec factor(product.factors[row]);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      (sums[row][v] * factor).store(product.c + row * product.c_row + v * kLanes);
  }
}

template <int vectors>
void multiply_rows(const Product& product, int rows) {
  switch (rows) {
    case 1:
      return multiply_tile<1, vectors>(product);
    case 2:
      return multiply_tile<2, vectors>(product);
    case 3:
      return multiply_tile<3, vectors>(product);
    case 4:
      return multiply_tile<4, vectors>(product);
    case 5:
      return multiply_tile<5, vectors>(product);
    default:
      return multiply_tile<kRows, vectors>(product);
  }
}

// `rows` is at most kRows, and `columns` a multiple of kLanes.
inline void multiply(Product product, int rows, std::int64_t columns) {
  const auto advance = [&](int vectors) {
    product.b += vectors * kLanes;
    product.c += vectors * kLanes;
    columns -= vectors * kLanes;
  };
  for (; columns >= kVectors * kLanes; advance(kVectors)) multiply_rows<kVectors>(product, rows);
  for (; columns > 0; advance(1)) multiply_rows<1>(product, rows);
}

/// Returns the bytes of so many floats, as a multiple of 64.
inline std::int64_t scratch_bytes(std::int64_t floats) {
  return (floats * static_cast<std::int64_t>(sizeof(float)) + 63) / 64 * 64;
}

inline std::int64_t padded_to_lanes(std::int64_t count) {
  return (count + kLanes - 1) / kLanes * kLanes;
}

/// Returns the matrix of one head.
template <class Float>
Float* matrix_of(Float* tensor, const HeadStrides& strides, std::int64_t image, std::int64_t head) {
  return tensor + image * strides.image + head * strides.head;
}

/// Copies a matrix with the strides `row` and `column` to `to`, whose rows have `to_row` floats.
/// Fills the rest of each row with zeros.
inline void pack_rows(const float* from, std::int64_t row, std::int64_t column, std::int64_t rows,
                      std::int64_t columns, float* to, std::int64_t to_row) {
  for (std::int64_t i = 0; i < rows; ++i, from += row, to += to_row) {
    if (column == 1) {
      std::copy(from, from + columns, to);
    } else {
      for (std::int64_t j = 0; j < columns; ++j) to[j] = from[j * column];
    }
    std::fill(to + columns, to + to_row, 0.0F);
  }
}

/// Copies a matrix whose rows have `from_row` floats to one with the strides `row` and `column`.
inline void unpack_rows(const float* from, std::int64_t from_row, std::int64_t rows,
                        std::int64_t columns, float* to, std::int64_t row, std::int64_t column) {
  if (column == 1) {
    for (std::int64_t i = 0; i < rows; ++i)
      std::copy(from + i * from_row, from + i * from_row + columns, to + i * row);
    return;
  }
  for (std::int64_t j = 0; j < columns; ++j) {
    for (std::int64_t i = 0; i < rows; ++i) to[j * column + i * row] = from[i * from_row + j];
  }
}

}  // namespace
}  // namespace torchalgo::kernels

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The accumulators of a register tile and their operations, for the micro-kernels that run Tiles
// (gemm_tile.h). Only sources of this folder may include it, as epilogue.h.

#include <array>
#include <cstdint>
#include <utility>

#include "cpu_algo/kernels/epilogue.h"
#include "cpu_algo/kernels/gemm_tile.h"

namespace torchalgo::kernels {
namespace {

constexpr int kMaxRows = 14;
#if defined(__AVX512F__)
constexpr std::array<int, kMaxTileBlocks> kMaxRowsOf = {14, 14, 9, 6};
#else
constexpr std::array<int, kMaxTileBlocks> kMaxRowsOf = {6, 3, 2, 1};
#endif

// Half a block of 16. If the other half does not exist, AVX-512 computes it as half a vector in
// half the time. With narrower vectors it is one of the block's two vectors.
constexpr int kHalf = kBlock / 2;
#if defined(__AVX512F__)
// These functions use the lower half of a vector. The upper half is undefined.
inline __m256 lower(const Vec& x) { return _mm512_castps512_ps256(x); }
inline Vec load_half(const float* at) { return _mm512_castps256_ps512(_mm256_loadu_ps(at)); }
inline Vec add_half(const Vec& a, const Vec& b) {
  return _mm512_castps256_ps512(_mm256_add_ps(lower(a), lower(b)));
}
inline Vec fmadd_half(const Vec& a, const Vec& b, const Vec& c) {
  return _mm512_castps256_ps512(_mm256_fmadd_ps(lower(a), lower(b), lower(c)));
}
inline Vec with_upper_zero(const Vec& x) { return _mm512_zextps256_ps512(lower(x)); }
#else
static_assert(kLanes == kHalf);
inline Vec load_half(const float* at) { return Vec::loadu(at); }
inline Vec add_half(const Vec& a, const Vec& b) { return a + b; }
inline Vec fmadd_half(const Vec& a, const Vec& b, const Vec& c) { return fmadd(a, b, c); }
inline Vec with_upper_zero(const Vec& x) { return x; }
#endif

// The accumulators of rows x blocks. If `is_half`, the last block has half of its columns. The
// array becomes registers, because every index is a constant once the loops are unrolled.
template <int rows, int blocks, bool is_half>
struct Accumulators {
  static constexpr int kWidth = blocks * kBlock;  // of B
  static constexpr int kStepsAhead = 12;          // of K, that B is fetched to L1
  static constexpr int kWhole = (blocks - (is_half ? 1 : 0)) * kBlockVectors;
  static constexpr int kVectors = kWhole + (is_half ? 1 : 0);  // the half one is the last
  Vec acc[rows][kVectors];

  // Calls function(vector, pointer, is_half) for each vector. The pointer is its position in a
  // matrix with the strides of C. Pointers are advanced step by step, because GCC would keep more
  // products than there are registers.
  template <class Pointer, class Function>
  void for_each_at(Pointer base, std::int64_t row_stride, std::int64_t block_stride,
                   const Function& function) {
#pragma GCC unroll 14
    for (int row = 0; row < rows; ++row) {
      Pointer at = base;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        function(acc[row][v], at + v % kBlockVectors * kLanes, v == kWhole);
        if (v % kBlockVectors + 1 == kBlockVectors) at += block_stride;
      }
      base += row_stride;
    }
  }
  template <class Pointer, class Function>
  void for_each_at(Pointer base, const Tile& tile, const Function& function) {
    for_each_at(base, tile.c_row_stride, tile.c_block_stride, function);
  }

  // Prefetches the memory that finish() reads and writes.
  void fetch_ends(const Tile& tile) {
    const auto fetch = [](auto&, const float* at, bool) { __builtin_prefetch(at, 1, 3); };
    for_each_at<const float*>(tile.c, tile, fetch);
    if (tile.residual != nullptr) for_each_at<const float*>(tile.residual, tile, fetch);
  }

  alignas(64) static constexpr float kZeros[blocks * kBlock] = {};

  // load() and add() read a matrix with these strides in floats. With a row stride of 0, all rows
  // are the same.
  void load(const float* from, std::int64_t row_stride, std::int64_t block_stride) {
    for_each_at(from, row_stride, block_stride, [](Vec& x, const float* at, bool half) {
      if (half) {
        x = load_half(at);
      } else {
        x = Vec::loadu(at);
      }
    });
  }
  void add(const float* from, std::int64_t row_stride, std::int64_t block_stride) {
    for_each_at(from, row_stride, block_stride, [](Vec& x, const float* at, bool half) {
      if (half) {
        x = add_half(x, load_half(at));
      } else {
        x = x + Vec::loadu(at);
      }
    });
  }

  void start(const Tile& tile) {
    if (tile.accumulate) return load(tile.c, tile.c_row_stride, tile.c_block_stride);
    const float* const bias = tile.bias != nullptr ? tile.bias : kZeros;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const float* const at = bias + v * kLanes;
      const Vec first = v == kWhole ? load_half(at) : Vec::loadu(at);
#pragma GCC unroll 14
      for (int row = 0; row < rows; ++row) acc[row][v] = first;
    }
    if (tile.row_bias != nullptr) {
      alignas(64) static constexpr auto kOnes = [] {
        std::array<float, kWidth> ones;
        ones.fill(1.0F);
        return ones;
      }();
      const float* base[kBases];
#pragma GCC unroll 5
      for (int i = 0; i < kBases; ++i) base[i] = tile.row_bias + 3 * i;
      step(base, 1, kOnes.data());
    }
  }

  // Rows are addressed as base[row / 3] + row % 3 strides: five pointers and one index register
  // reach 14 rows without further arithmetic.
  static constexpr int kBases = (rows + 2) / 3;

  void step(const float* const (&base)[kBases], std::int64_t stride, const float* b) {
    Vec weights[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const float* const at = b + v * kLanes;
      if (v == kWhole)
        weights[v] = load_half(at);
      else
        weights[v] = Vec::loadu(at);
    }
#pragma GCC unroll 14
    for (int row = 0; row < rows; ++row) {
      const Vec a(base[row / 3][row % 3 * stride]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        if (v == kWhole)
          acc[row][v] = fmadd_half(a, weights[v], acc[row][v]);
        else
          acc[row][v] = fmadd(a, weights[v], acc[row][v]);
      }
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

  // If `fetches_b`, B is prefetched into L1 too. This helps if a stretch of B ends before the CPU
  // recognizes a stream.
  template <bool fetches_b = false>
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
        if constexpr (fetches_b) {
#pragma GCC unroll 4
          for (int block = 0; block < blocks; ++block)
            __builtin_prefetch(b + kStepsAhead * kWidth + block * kBlock, 0, 3);
        }
        step(base, stride, b);
        b += kWidth;
#pragma GCC unroll 5
        for (int i = 0; i < kBases; ++i) ++base[i];
      }
    }
  }

  // Stores finished(x) of every vector. The other half of a half block is stored as zeros.
  template <class Finished>
  void store(const Tile& tile, const Finished& finished) {
    for_each_at<float*>(tile.c, tile, [&](const Vec& x, float* at, bool half) {
      if (half)
        finished(with_upper_zero(x)).store(at);
      else
        finished(x).store(at);
      if (half && kLanes == kHalf) Vec(0.0F).store(at + kHalf);
    });
  }

  void finish(const Tile& tile) {
    if (tile.residual != nullptr) add(tile.residual, tile.c_row_stride, tile.c_block_stride);
    switch (tile.activation.kind) {
      case Activation::kRelu:
        return store(tile, [zero = Vec(0.0F)](const Vec& x) { return clamp_min(x, zero); });
      case Activation::kRelu6:
      case Activation::kClamp: {
        const Clamp clamp = clamp_of(tile.activation);
        return store(tile, [low = Vec(clamp.low), high = Vec(clamp.high)](const Vec& x) {
          return apply_clamp(x, low, high);
        });
      }
      case Activation::kHardswish:
        return store(tile, [](const Vec& x) { return activate<Activation::kHardswish>(x); });
      default:
        return store(tile, [](const Vec& x) { return x; });
    }
  }
};

// The functions Runner<rows, blocks>::run for every number of rows up to kMaxRows. Null if the
// registers cannot hold them.
template <template <int, int> class Runner, int rows, int blocks>
constexpr auto run_or_null() -> decltype(&Runner<1, 1>::run) {
  if constexpr (rows <= kMaxRowsOf[blocks - 1]) {
    return &Runner<rows, blocks>::run;
  } else {
    return nullptr;
  }
}
template <template <int, int> class Runner, int blocks>
constexpr auto kRunners = []<int... index>(std::integer_sequence<int, index...>) {
  return std::array{run_or_null<Runner, index + 1, blocks>()...};
}
(std::make_integer_sequence<int, kMaxRows>());

[[gnu::noinline]] void activate_tile(const Tile& tile, int rows, int blocks) {
  with_activation(tile.activation.kind, [&]<Activation::Kind kind>() {
    for (int v = 0; v < blocks * kBlockVectors; ++v) {
      activate_vectors<kind>(
          tile.c + v / kBlockVectors * tile.c_block_stride + v % kBlockVectors * kLanes,
          tile.c_row_stride, rows, tile.activation);
    }
  });
}

}  // namespace
}  // namespace torchalgo::kernels

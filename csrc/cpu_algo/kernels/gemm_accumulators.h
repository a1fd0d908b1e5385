// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The accumulators of a register tile and what is done to them, for the micro-kernels that run
// Tiles (gemm_tile.h). For sources of this folder only, as epilogue.h.

#include <array>
#include <cstdint>
#include <utility>

#include "cpu_algo/kernels/epilogue.h"
#include "cpu_algo/kernels/gemm_tile.h"

namespace torchalgo::kernels {
namespace {

constexpr int kMaxRows = 14;
#if defined(CPU_CAPABILITY_AVX512)
constexpr std::array<int, kMaxTileBlocks> kMaxRowsOf = {14, 14, 9, 6};
#else
constexpr std::array<int, kMaxTileBlocks> kMaxRowsOf = {6, 3, 2, 1};
#endif

// Half a block of 16: what a vector of AVX-512 computes in half the time where the other half of it
// does not exist; with narrower vectors one of the block's two.
constexpr int kHalf = kBlock / 2;
#if defined(CPU_CAPABILITY_AVX512)
struct HalfBlock {
  __m256 values;
  static HalfBlock loadu(const float* at) { return {_mm256_loadu_ps(at)}; }
  static HalfBlock filled(float x) { return {_mm256_set1_ps(x)}; }
  void add(HalfBlock b) { values = _mm256_add_ps(values, b.values); }
  void multiply_add(Vec a, HalfBlock b) {
    values = _mm256_fmadd_ps(_mm512_castps512_ps256(a), b.values, values);
  }
  // With zeros in the other half.
  [[nodiscard]] Vec whole() const { return {_mm512_zextps256_ps512(values)}; }
};
#else
struct HalfBlock {
  Vec values;
  static HalfBlock loadu(const float* at) { return {Vec::loadu(at)}; }
  static HalfBlock filled(float x) { return {Vec(x)}; }
  void add(HalfBlock b) { values = values + b.values; }
  void multiply_add(Vec a, HalfBlock b) { values = at::vec::fmadd(a, b.values, values); }
  [[nodiscard]] Vec whole() const { return values; }
};
static_assert(kLanes == kHalf);
#endif

// The accumulators of rows x blocks, of the last block half of its columns if `is_half`. The arrays
// become registers: every index is a constant once the loops are unrolled.
template <int rows, int blocks, bool is_half>
struct Accumulators {
  static constexpr int kWidth = blocks * kBlock;  // of B
  static constexpr int kStepsAhead = 12;          // of K, that B is fetched to L1
  static constexpr int kVectors = (blocks - (is_half ? 1 : 0)) * kBlockVectors;
  Vec acc[rows][kVectors > 0 ? kVectors : 1];
  HalfBlock half[is_half ? rows : 1];

  // function(vector or half block, v): v counts vectors from the row's first.
  template <class Function>
  void for_each(const Function& function) {
#pragma GCC unroll 14
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) function(acc[row][v], v);
      if constexpr (is_half) function(half[row], kVectors);
    }
  }

  // function(vector or half block, its place in a matrix that lies as C does). Pointers are
  // stepped: of products GCC would keep more than there are registers.
  template <class Pointer, class Function>
  void for_each_at(Pointer base, const Tile& tile, const Function& function) {
    const std::int64_t row_stride = tile.c_row_stride, block_stride = tile.c_block_stride;
#pragma GCC unroll 14
    for (int row = 0; row < rows; ++row) {
      Pointer at = base;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        function(acc[row][v], at + v % kBlockVectors * kLanes);
        if (v % kBlockVectors + 1 == kBlockVectors) at += block_stride;
      }
      if constexpr (is_half) function(half[row], at);
      base += row_stride;
    }
  }

  static void load(Vec& x, const float* at) { x = Vec::loadu(at); }
  static void load(HalfBlock& x, const float* at) { x = HalfBlock::loadu(at); }
  static void fill(Vec& x, float value) { x = Vec(value); }
  static void fill(HalfBlock& x, float value) { x = HalfBlock::filled(value); }
  static void add(Vec& x, const float* at) { x = x + Vec::loadu(at); }
  static void add(HalfBlock& x, const float* at) { x.add(HalfBlock::loadu(at)); }

  // Asks for what finish will read and write.
  void fetch_ends(const Tile& tile) {
    const auto fetch = [](auto&, const float* at) { __builtin_prefetch(at, 1, 3); };
    for_each_at<const float*>(tile.c, tile, fetch);
    if (tile.residual != nullptr) for_each_at<const float*>(tile.residual, tile, fetch);
  }

  void start(const Tile& tile) {
    if (tile.accumulate) {
      for_each_at<const float*>(tile.c, tile, [](auto& x, const float* at) { load(x, at); });
    } else if (const float* const bias = tile.bias; bias != nullptr) {
      for_each([&](auto& x, int v) { load(x, bias + v * kLanes); });
    } else if (const float* const row_bias = tile.row_bias; row_bias != nullptr) {
#pragma GCC unroll 14
      for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) fill(acc[row][v], row_bias[row]);
        if constexpr (is_half) fill(half[row], row_bias[row]);
      }
    } else {
      for_each([](auto& x, int) { fill(x, 0.0F); });
    }
  }

  // Rows are addressed as base[row / 3] + row % 3 strides: five pointers and one index register
  // reach 14 rows without further arithmetic.
  static constexpr int kBases = (rows + 2) / 3;

  void step(const float* const (&base)[kBases], std::int64_t stride, const float* b) {
    Vec weights[kVectors + 1];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) weights[v] = Vec::loadu(b + v * kLanes);
    const HalfBlock half_weights = is_half ? HalfBlock::loadu(b + kVectors * kLanes) : HalfBlock{};
#pragma GCC unroll 14
    for (int row = 0; row < rows; ++row) {
      const Vec a(base[row / 3][row % 3 * stride]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[row][v] = at::vec::fmadd(a, weights[v], acc[row][v]);
      if constexpr (is_half) half[row].multiply_add(a, half_weights);
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

  // fetches_b: B into L1 too, for stretches of it that end before the CPU sees a stream.
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

  // finished(x) of every vector, stored; of a half block the other half too, as zeros.
  template <class Finished>
  void store(const Tile& tile, const Finished& finished) {
    for_each_at<float*>(tile.c, tile, [&](const auto& x, float* at) { put(x, finished, at); });
  }
  template <class Finished>
  static void put(Vec x, const Finished& finished, float* at) {
    finished(x).store(at);
  }
  template <class Finished>
  static void put(HalfBlock x, const Finished& finished, float* at) {
    finished(x.whole()).store(at);
    if constexpr (kLanes == kHalf) Vec(0.0F).store(at + kHalf);
  }

  void finish(const Tile& tile) {
    if (tile.residual != nullptr) {
      for_each_at<const float*>(tile.residual, tile, [](auto& x, const float* at) { add(x, at); });
    }
    switch (tile.activation) {
      case Activation::kRelu:
        return store(tile, [zero = Vec(0.0F)](Vec x) { return at::vec::clamp_min(x, zero); });
      case Activation::kRelu6:
        return store(tile, [zero = Vec(0.0F), six = Vec(6.0F)](Vec x) {
          return at::vec::clamp_max(at::vec::clamp_min(x, zero), six);
        });
      case Activation::kHardswish:
        if constexpr (kHasVectors)
          return store(tile, [](Vec x) { return activate<Activation::kHardswish>(x); });
        [[fallthrough]];
      default:
        return store(tile, [](Vec x) { return x; });
    }
  }
};

// Runner<rows, blocks>::run of every number of rows up to kMaxRows; null where the registers do not
// hold them.
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
  with_activation(tile.activation, [&]<Activation activation>() {
    for (int v = 0; v < blocks * kBlockVectors; ++v) {
      activate_vectors<activation>(
          tile.c + v / kBlockVectors * tile.c_block_stride + v % kBlockVectors * kLanes,
          tile.c_row_stride, rows);
    }
  });
}

}  // namespace
}  // namespace torchalgo::kernels

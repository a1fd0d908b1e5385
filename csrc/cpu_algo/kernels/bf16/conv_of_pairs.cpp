// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/bf16_conv.h"

#include <immintrin.h>

#include <utility>

#include "cpu_algo/kernels/bf16_conv_task.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

// The most pixels whose sums stay in registers, beside the weights of 32 channels and a pair.
constexpr int kMostPixels = 14;

inline __m512bh load_weights(const Bf16* address) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(address));
}

/// Returns 16 copies of a pair of channels.
inline __m512bh repeat_pair(const Bf16* address) {
  std::int32_t pair;
  std::memcpy(&pair, address, sizeof pair);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

/// Computes the sums of `rows` pixels, which lie `stride` elements apart from `src` on.
template <int rows, bool is_wide, bool has_prefetch>
void multiply_rows(const Bf16Conv& conv, const Bf16* src, std::int64_t stride,
                   const Product& product, float* sums) {
  constexpr int kVectors = is_wide ? 2 : 1;
  const std::int64_t tile = conv.depth * 16, pairs = conv.depth / 2;
  const Bf16* weights = product.weights;
  const Bf16* next = product.next;
  __m512 sum[rows][kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const __m512 bias = _mm512_loadu_ps(product.bias + v * 16);
    for (int row = 0; row < rows; ++row) sum[row][v] = bias;
  }
  for (std::int64_t step = 0; step < conv.steps; ++step, weights += 2 * tile) {
    // Four rows share a pointer: an address has up to three times the stride.
    const Bf16* pixels[(rows + 3) / 4];
    for (int i = 0; i < (rows + 3) / 4; ++i) pixels[i] = src + conv.offsets[step] + 4 * i * stride;
    const Bf16* column = weights;
    for (std::int64_t pair = 0; pair < pairs; ++pair, column += 32) {
      __m512bh weight[kVectors];
      for (int v = 0; v < kVectors; ++v) weight[v] = load_weights(column + v * tile);
#pragma GCC unroll 16
      for (int row = 0; row < rows; ++row) {
        const __m512bh x = repeat_pair(pixels[row / 4] + row % 4 * stride + 2 * pair);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v)
          sum[row][v] = _mm512_dpbf16_ps(sum[row][v], weight[v], x);
      }
    }
    if constexpr (has_prefetch) {
      for (std::int64_t line = 0; line < product.next_lines; ++line, next += 32)
        __builtin_prefetch(next, 0, 2);
    }
  }
  for (int row = 0; row < rows; ++row) {
    for (int v = 0; v < kVectors; ++v)
      _mm512_store_ps(sums + row * kBlockChannels + v * 16, sum[row][v]);
  }
}

using MultiplyRows = void (*)(const Bf16Conv&, const Bf16*, std::int64_t, const Product&, float*);

template <bool is_wide, bool has_prefetch>
MultiplyRows pick_rows(std::int64_t rows) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    static constexpr MultiplyRows kKernels[] = {multiply_rows<i + 1, is_wide, has_prefetch>...};
    return kKernels[rows - 1];
  }
  (std::make_integer_sequence<int, kMostPixels>());
}

template <bool is_wide>
void multiply(const Bf16Conv& conv, const Product& product, float* sums) {
  const std::int64_t stride = bf16_conv_pixel_step(conv);
  const std::int64_t rows = conv.tile_rows, first = rows > kMostPixels ? rows / 2 : rows;
  for (int tile = 0; tile < (product.is_pair ? 2 : 1); ++tile) {
    const Bf16* const src = product.tiles[tile].src;
    float* const to = sums + tile * rows * kBlockChannels;
    const auto kernel =
        tile == 0 ? pick_rows<is_wide, true>(first) : pick_rows<is_wide, false>(first);
    kernel(conv, src, stride, product, to);
    if (first < rows) {
      pick_rows<is_wide, false>(rows - first)(conv, src + first * stride, stride, product,
                                              to + first * kBlockChannels);
    }
  }
}

}  // namespace

void bf16_conv(const Bf16Conv& conv, std::int64_t task, void* scratch, std::int64_t& band) {
  run_task(conv, task, scratch, band, [&](const Product& product, float* sums) {
    product.is_wide ? multiply<true>(conv, product, sums) : multiply<false>(conv, product, sums);
  });
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

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

/// Memory that is needed later. With each pair of channels, two lines are prefetched. For few
/// channels, `step` may be more than these, and then lines between them are left out.
struct Prefetch {
  const char* next;
  std::int64_t step;  // in bytes
};

/// Computes the sums of `rows` pixels, which lie `stride` elements apart from `src` on. If `dst` is
/// not null, it adds the residual, applies the activation and stores the results. Else it stores
/// the sums, as always if not is_wide.
template <int rows, bool is_wide>
void multiply_rows(const Bf16Conv& conv, const Bf16* src, std::int64_t stride,
                   const Product& product, Prefetch prefetch, Bf16* dst, float* sums) {
  constexpr int kVectors = is_wide ? 2 : 1;
  const std::int64_t tile = conv.depth * 16;
  const Bf16* weights = product.weights;
  Vec sum[rows][kVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const Vec bias = Vec::loadu(product.bias + v * kLanes);
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) sum[row][v] = bias;
  }
  for (std::int64_t step = 0; step < conv.steps; ++step, weights += 2 * tile) {
    // Four rows share a pointer: an address has up to three times the stride.
    const Bf16* pixels[(rows + 3) / 4];
#pragma GCC unroll 4
    for (int i = 0; i < (rows + 3) / 4; ++i) pixels[i] = src + conv.offsets[step] + 4 * i * stride;
    const Bf16* const end = weights + tile;
    for (const Bf16* column = weights; column < end; column += 32) {
      __builtin_prefetch(prefetch.next, 0, 2);
      __builtin_prefetch(prefetch.next + 64, 0, 2);
      prefetch.next += prefetch.step;
      __m512bh weight[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) weight[v] = load_weights(column + v * tile);
#pragma GCC unroll 16
      for (int row = 0; row < rows; ++row) {
        const __m512bh x = repeat_pair(pixels[row / 4] + row % 4 * stride);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v)
          sum[row][v].part[0] = _mm512_dpbf16_ps(sum[row][v].part[0], weight[v], x);
      }
#pragma GCC unroll 4
      for (int i = 0; i < (rows + 3) / 4; ++i) pixels[i] += 2;
    }
  }
  if (dst == nullptr) {
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v)
        sum[row][v].store(sums + row * kBlockChannels + v * kLanes);
    }
    return;
  }
  if constexpr (is_wide) {
    const Clamp clamp = clamp_of(conv.activation);  // of no activation: infinite
    const Vec low(clamp.low), high(clamp.high);
    const auto* residual = static_cast<const Bf16*>(conv.residual);
    if (residual != nullptr) residual += dst - static_cast<const Bf16*>(conv.dst);
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
      Vec values[2] = {sum[row][0], sum[row][1]};
      if (residual != nullptr) {
        values[0] = values[0] + Vec::loadu(residual);
        values[1] = values[1] + Vec::loadu(residual + kLanes);
        residual += conv.k;
      }
      for (Vec& value : values) value = clamp_max(clamp_min(value, low), high);
      store(values, dst);
      dst += conv.k;
    }
  }
}

using MultiplyRows = void (*)(const Bf16Conv&, const Bf16*, std::int64_t, const Product&, Prefetch,
                              Bf16*, float*);

template <bool is_wide>
MultiplyRows pick_rows(std::int64_t rows) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    static constexpr MultiplyRows kKernels[] = {multiply_rows<i + 1, is_wide>...};
    return kKernels[rows - 1];
  }
  (std::make_integer_sequence<int, kMostPixels>());
}

template <bool is_wide>
bool multiply(const Bf16Conv& conv, const Product& product, float* sums) {
  const std::int64_t stride = bf16_conv_pixel_step(conv), rows = conv.tile_rows;
  const std::int64_t parts = rows > kMostPixels ? 2 : 1;  // of a tile
  const std::int64_t calls = (product.is_pair ? 2 : 1) * parts;
  const std::int64_t later = product.next_lines * 64 * conv.steps;  // bytes to prefetch
  const std::int64_t step = later * 2 / (calls * conv.steps * conv.depth);
  for (std::int64_t call = 0; call < calls; ++call) {
    const std::int64_t part = call % parts, first = rows * part / parts;
    const std::int64_t count = rows * (part + 1) / parts - first;
    const Bf16* const next = product.next == nullptr ? product.weights : product.next;
    const Prefetch prefetch = {reinterpret_cast<const char*>(next) + later * call / calls, step};
    const std::int64_t row = call / parts * rows + first;
    Bf16* const dst = product.dst == nullptr ? nullptr : product.dst + row * conv.k;
    pick_rows<is_wide>(count)(conv, product.tiles[call / parts].src + first * stride, stride,
                              product, prefetch, dst, sums + row * kBlockChannels);
  }
  return product.dst != nullptr;
}

}  // namespace

void bf16_conv(const Bf16Conv& conv, std::int64_t task, void* scratch, std::int64_t& band) {
  run_task(conv, task, scratch, band, [&](const Product& product, float* sums) {
    return product.is_wide ? multiply<true>(conv, product, sums)
                           : multiply<false>(conv, product, sums);
  });
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

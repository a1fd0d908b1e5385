// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/bf16_conv.h"

#include <immintrin.h>

#include "cpu_algo/kernels/bf16_conv_task.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

// Tiles 0 to 3 are sums: of the first pixels and the first channels, first and second, second and
// first, second and second. Tiles 4 and 5 are pixels, 6 and 7 are weights.

/// Sets the shapes of the tiles.
inline void set_shapes(std::int64_t pixels, std::int64_t depth) {
  struct alignas(64) {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  } shapes;
  const auto set = [&](int tile, std::int64_t rows, std::int64_t bytes) {
    shapes.rows[tile] = static_cast<std::uint8_t>(rows);
    shapes.row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  };
  for (int tile = 0; tile < 4; ++tile) set(tile, pixels, 64);
  for (int tile = 4; tile < 6; ++tile) set(tile, pixels, depth * 2);
  for (int tile = 6; tile < 8; ++tile) set(tile, depth / 2, 64);
  // GCC 12 assumes that _tile_loadconfig reads 8 bytes only.
  asm volatile("" : : "r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
}

template <bool is_pair, bool is_wide>
inline void multiply(const Bf16Conv& conv, const Product& product, float* sums) {
  const std::int64_t stride = bf16_conv_pixel_step(conv) * std::int64_t{sizeof(Bf16)};
  const std::int64_t tile = conv.depth * 16;
  const std::int64_t steps = conv.steps, next_lines = product.next_lines;
  const std::int64_t* const offsets = conv.offsets;
  const Bf16* const first = product.tiles[0].src;
  const Bf16* const second = product.tiles[1].src;
  const Bf16* weights = product.weights;
  const Bf16* next = product.next;
  // All rows of sums begin with the bias: the step between them is 0.
  _tile_loadd(0, product.bias, 0);
  if constexpr (is_wide) _tile_loadd(1, product.bias + 16, 0);
  if constexpr (is_pair) _tile_loadd(2, product.bias, 0);
  if constexpr (is_pair && is_wide) _tile_loadd(3, product.bias + 16, 0);
  for (std::int64_t step = 0; step < steps; ++step, weights += 2 * tile) {
    const std::int64_t offset = offsets[step];
    // Products with the same weights follow each other: a change of weights takes as long as a
    // product of 16 rows.
    _tile_loadd(6, weights, 64);
    _tile_loadd(4, first + offset, stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (is_pair) {
      _tile_loadd(5, second + offset, stride);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (is_wide) {
      _tile_loadd(7, weights + tile, 64);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (is_pair) _tile_dpbf16ps(3, 5, 7);
    }
    for (std::int64_t line = 0; line < next_lines; ++line, next += 32)
      __builtin_prefetch(next, 0, 2);
  }
  constexpr int kPitch = kBlockChannels * sizeof(float);
  float* const below = sums + conv.tile_rows * kBlockChannels;
  _tile_stored(0, sums, kPitch);
  if constexpr (is_wide) _tile_stored(1, sums + 16, kPitch);
  if constexpr (is_pair) _tile_stored(2, below, kPitch);
  if constexpr (is_pair && is_wide) _tile_stored(3, below + 16, kPitch);
}

}  // namespace

void bf16_conv(const Bf16Conv& conv, std::int64_t task, void* scratch, std::int64_t& band) {
  set_shapes(conv.tile_rows, conv.depth);
  run_task(conv, task, scratch, band, [&](const Product& product, float* sums) {
    if (product.is_pair && product.is_wide) {
      multiply<true, true>(conv, product, sums);
    } else if (product.is_pair) {
      multiply<true, false>(conv, product, sums);
    } else if (product.is_wide) {
      multiply<false, true>(conv, product, sums);
    } else {
      multiply<false, false>(conv, product, sums);
    }
    return false;
  });
  _tile_release();
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/bf16_conv.h"

#include "cpu_algo/kernels/bf16_conv_task.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

/// Adds the products of one row of a tile of A with the two tiles of weights of each step.
inline void multiply_row(const Bf16Conv& conv, const Bf16* src, const Product& product,
                         float* sums) {
  constexpr int kTile = kBlockChannels / 2;
  typedef std::uint32_t Pairs __attribute__((vector_size(kLanes * 4), aligned(2), may_alias));
  typedef float Floats __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
  for (int i = 0; i < kBlockChannels; ++i) sums[i] = product.bias[i];
  const Bf16* weights = product.weights;
  for (std::int64_t step = 0; step < conv.steps; ++step) {
    const Bf16* const a = src + conv.offsets[step];
    for (int tile = 0; tile < 2; ++tile) {
      for (std::int64_t pair = 0; pair < conv.depth / 2; ++pair, weights += 2 * kTile) {
        float even, odd;
        const std::uint32_t bits[2] = {std::uint32_t{a[2 * pair]} << 16,
                                       std::uint32_t{a[2 * pair + 1]} << 16};
        std::memcpy(&even, bits, sizeof even);
        std::memcpy(&odd, bits + 1, sizeof odd);
        for (int i = 0; i < kTile; i += kLanes) {
          const Pairs both = *reinterpret_cast<const Pairs*>(weights + 2 * i);
          auto& sum = *reinterpret_cast<Floats*>(sums + tile * kTile + i);
          sum += even * reinterpret_cast<Floats>(both << 16);
          sum += odd * reinterpret_cast<Floats>(both & 0xffff0000U);
        }
      }
    }
  }
}

}  // namespace

void bf16_conv(const Bf16Conv& conv, std::int64_t task, void* scratch, std::int64_t& band) {
  const std::int64_t step = bf16_conv_pixel_step(conv);
  run_task(conv, task, scratch, band, [&](const Product& product, float* sums) {
    for (int tile = 0; tile < (product.is_pair ? 2 : 1); ++tile) {
      for (std::int64_t row = 0; row < conv.tile_rows; ++row) {
        multiply_row(conv, product.tiles[tile].src + row * step, product,
                     sums + (tile * conv.tile_rows + row) * kBlockChannels);
      }
    }
    return false;
  });
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

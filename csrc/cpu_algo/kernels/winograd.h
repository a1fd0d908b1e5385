// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Winograd's minimal filtering F(m x m, 3 x 3), m = 2 or 4, on nChw16c tensors: a tile of m x m
// outputs costs (m + 2)^2 multiplications instead of 9 m^2. A block of tiles is transformed into
// scratch V, multiplied with each panel of the transformed weights into scratch M, and M is
// transformed back with the epilogue while it lies in L2.
// Source: Lavin & Gray 2016, CVPR, pp. 4013-4021, doi:10.1109/CVPR.2016.435.

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

// F(4x4) interpolates at 0, +-3/4, +-3/2 and infinity; the transforms' constants are exact in
// binary. Relative L2 error to f64 with 64 and 512 channels (28x28, inputs as after a
// ReLU): 6.9e-7, 1.8e-6; the textbook's 0, +-1, +-2 has 1.5e-6, 3.7e-6 at the same cost; F(2x2)
// has 2.3e-7, 6.0e-7.
constexpr double kWinogradNearPoint = 0.75;
constexpr double kWinogradFarPoint = 1.5;

/// Elements of a transformed tile: (m + 2)^2.
constexpr int winograd_elements(int m) { return (m + 2) * (m + 2); }

/// A convolution with a 3x3 filter, stride 1, no dilation, no groups.
struct Winograd {
  const float* src = nullptr;       // [n, c_blocks, h, w, 16]
  const float* weights = nullptr;   // per panel [elements, c_blocks * 16, blocks of the panel * 16]
  const float* bias = nullptr;      // [k_blocks, 16]; zeros if the problem has none
  const float* residual = nullptr;  // lies as dst; null: none
  float* dst = nullptr;             // [n, k_blocks, p, q, 16]
  std::int64_t c_blocks = 1, k_blocks = 1;
  std::int64_t panel_blocks = 1;  // of 16 output channels; the last panel may have fewer
  std::int64_t pad_lanes = 0;     // of dst's last block, left zero
  std::int64_t h = 1, w = 1, p = 1, q = 1, pad_h = 0, pad_w = 0;
  std::int64_t tiles_h = 1, tiles_w = 1;  // ceil(p / m), ceil(q / m)
  Activation activation = Activation::kNone;
};

/// Tiles [begin, begin + count) of the n * tiles_h * tiles_w that there are, rows first.
struct TileBlock {
  std::int64_t begin = 0, count = 0;
};

/// Floats of V: [elements][c_blocks][count][16], with a gap between elements so that they do not
/// fall into the same cache sets.
constexpr std::int64_t winograd_v_step(std::int64_t c_blocks, std::int64_t count) {
  return c_blocks * count * 16 + 16;
}
/// Floats of M: [elements][panel_blocks][count][16], likewise.
constexpr std::int64_t winograd_m_step(std::int64_t panel_blocks, std::int64_t count) {
  return panel_blocks * count * 16 + 16;
}

struct WinogradKernels {
  /// Writes the channel blocks [begin, end) of V.
  void (*transform)(const Winograd&, const TileBlock&, float* v, std::int64_t begin,
                    std::int64_t end);
  /// Computes the output channels of the panels [begin, end) from V. `chunks` has room for
  /// c_blocks chunks of a GEMM tile, 8 bytes each.
  void (*multiply)(const Winograd&, const TileBlock&, const float* v, float* m, void* chunks,
                   std::int64_t begin, std::int64_t end);
};

// The kernels of F(m x m); m = 2 or 4.
TORCHALGO_DECLARE_KERNEL(WinogradKernels winograd_kernels(int m))

}  // namespace torchalgo::kernels

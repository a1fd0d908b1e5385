// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The gradient of a 3x3 convolution with respect to its weights by Winograd's F(3x3,4x4): 3x3
// results from tiles of 6x6 pixels of src and 4x4 pixels of diff_dst. It is the transpose of
// F(4x4,3x3): dW = G^T [sum over tiles of (A dY A^T) . (B^T X B)] G, with the same transform of
// src. So V comes from winograd_kernels(). E holds the transformed tiles of diff_dst, U the sums.
// Source: Lavin & Gray 2016, CVPR, pp. 4013-4021, doi:10.1109/CVPR.2016.435, section 4.

#include <cstdint>

#include "cpu_algo/kernels/filter_blocks.h"
#include "cpu_algo/kernels/isa.h"
#include "cpu_algo/kernels/winograd.h"

namespace torchalgo::kernels {

/// The tile whose transpose is computed.
inline constexpr WinogradTile kBackwardFilterTile = {{4, 3}, {4, 3}};

/// Floats from one element of U to the next: [elements][k blocks][c blocks][16 of k][16 of c].
constexpr std::int64_t winograd_u_step(const FilterBlocks& blocks) {
  return blocks.count() * 256 + 16;
}

struct WinogradBackwardFilter {
  const float* diff_dst = nullptr;  // [n, k_blocks, p, q, 16] or [n, p, q, k]
  float* diff_weights = nullptr;    // [k, c / groups, 3, 3]
  std::int64_t c_blocks = 1, k_blocks = 1;
  std::int64_t c = 1, k = 1;  // channels that exist: of a group, and of diff_dst
  WinogradSide side;          // of diff_dst
  std::int64_t p = 1, q = 1, tiles_h = 1, tiles_w = 1;
};

struct WinogradBackwardFilterKernels {
  /// Writes the channel blocks [begin, end) of E: [elements][k_blocks][tiles][16], with the steps
  /// of winograd_v_step().
  void (*transform)(const WinogradBackwardFilter&, const TileBlock&, float* e, std::int64_t begin,
                    std::int64_t end);
  /// Computes U of `blocks` from a block of tiles. Adds to U unless `is_first`.
  void (*multiply)(const WinogradBackwardFilter&, const FilterBlocks& blocks, std::int64_t tiles,
                   const float* v, const float* e, float* u, bool is_first);
  /// Transforms the sum of `parts` U, which lie `part_step` floats apart, back to the gradient.
  /// `first_c` is the first channel of c_begin in its group.
  void (*finish)(const WinogradBackwardFilter&, const FilterBlocks& blocks, const float* u,
                 std::int64_t parts, std::int64_t part_step, std::int64_t first_c);
};

TORCHALGO_DECLARE_KERNEL(WinogradBackwardFilterKernels winograd_backward_filter_kernels())

}  // namespace torchalgo::kernels

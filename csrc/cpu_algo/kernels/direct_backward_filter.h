// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The gradient of a convolution with respect to its weights, as sums of outer products: each pixel
// of diff_dst adds its k output channels times the c input channels of each pixel of src that it is
// computed from. Both tensors lie in nChw16c.

#include <cstdint>

#include "cpu_algo/kernels/filter_blocks.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The most taps of a filter.
inline constexpr std::int64_t kMostBackwardFilterTaps = 64;

/// The sizes, without dilation. c and k are the channels that exist: of a group, and of diff_dst.
struct DirectBackwardFilter {
  const float* src = nullptr;       // [n, c_blocks, h, w, 16]
  const float* diff_dst = nullptr;  // [n, k_blocks, p, q, 16]
  float* diff_weights = nullptr;    // [k, c / groups, r, s]
  std::int64_t c_blocks = 1, k_blocks = 1, c = 1, k = 1;
  std::int64_t h = 1, w = 1, p = 1, q = 1, r = 1, s = 1;
  std::int64_t stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
};

/// Rows [y_begin, y_end) of diff_dst in the images [begin, end).
struct ImageRows {
  std::int64_t begin = 0, end = 0, y_begin = 0, y_end = 0;
};

struct DirectBackwardFilterKernels {
  /// Adds the products of some rows to the sums [r, s][k blocks][c blocks][16 of k][16 of c] of
  /// `blocks`. Starts from zero if `is_first`.
  void (*multiply)(const DirectBackwardFilter&, const FilterBlocks& blocks, const ImageRows& rows,
                   float* sums, bool is_first);
  /// Writes the gradient from `parts` sums, which lie `part_step` floats apart and are added up.
  /// `first_c` is the first channel of c_begin in its group.
  void (*finish)(const DirectBackwardFilter&, const FilterBlocks& blocks, const float* sums,
                 std::int64_t parts, std::int64_t part_step, std::int64_t first_c);
};

TORCHALGO_DECLARE_KERNEL(DirectBackwardFilterKernels direct_backward_filter_kernels())

}  // namespace torchalgo::kernels

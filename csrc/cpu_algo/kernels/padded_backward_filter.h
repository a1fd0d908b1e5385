// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Gradients with respect to weights of convolutions with few input channels per output channel: a
// network's first convolution, and depthwise ones. Some rows of src are copied with the zeros
// around the image, so that every tap of every result reads the copy.

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The strides of src or diff_dst in floats: from an image, a block of 16 channels, a pixel and a
/// channel to the next.
struct PixelSteps {
  std::int64_t image = 0, block = 0, pixel = 16, channel = 1;
};

/// The sizes, without dilation.
struct PaddedBackwardFilter {
  const float* src = nullptr;
  const float* diff_dst = nullptr;
  float* diff_weights = nullptr;  // [k, c / groups, r, s]
  PixelSteps src_steps, dst_steps;
  std::int64_t c = 1, k = 1;
  std::int64_t h = 1, w = 1, p = 1, q = 1, r = 1, s = 1;
  std::int64_t stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
};

/// Rows [begin, end) of diff_dst in one image.
struct DstRows {
  std::int64_t image = 0, begin = 0, end = 0;
};

/// Returns the pixels of the copy that `rows` rows of diff_dst read.
constexpr std::int64_t padded_pixels(const PaddedBackwardFilter& conv, std::int64_t rows) {
  return ((rows - 1) * conv.stride_h + conv.r) * ((conv.q - 1) * conv.stride_w + conv.s);
}

/// The functions for all input channels at once, of which there are few, or for a block of 16
/// channels of a depthwise convolution. `copy` has padded_pixels() times the channels.
struct PaddedBackwardFilterKernels {
  /// Adds the products of some rows to sums: [k blocks][r][s][c][16 of k] or, of channel block
  /// `block`, [r][s][16]. Starts from zero if `is_first`.
  void (*multiply)(const PaddedBackwardFilter&, std::int64_t block, const DstRows& rows,
                   float* copy, float* sums, bool is_first);
  /// Writes the gradient of a block of output channels from `parts` sums that lie `part_step`
  /// floats apart.
  void (*finish)(const PaddedBackwardFilter&, std::int64_t block, const float* sums,
                 std::int64_t parts, std::int64_t part_step);
};

// Return the kernels of convolutions with one group, and of depthwise ones.
TORCHALGO_DECLARE_KERNEL(PaddedBackwardFilterKernels stem_backward_filter_kernels();
                         PaddedBackwardFilterKernels depthwise_backward_filter_kernels())

}  // namespace torchalgo::kernels

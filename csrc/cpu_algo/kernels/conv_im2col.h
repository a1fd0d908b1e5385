// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// A convolution from nchw to nchw. Blocks of the im2col matrix (K x pixels) are gathered in scratch
// and multiplied with the weights in the model's order. Pixels are in the vector lanes, weights are
// broadcast.

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The arguments of conv_im2col. Sizes are in elements. All tensors are contiguous.
struct ConvIm2col {
  const float* src = nullptr;       // [images, groups * c, h, w]
  const float* weights = nullptr;   // [groups * k, weights_row], c * r * s of a row in use
  const float* bias = nullptr;      // [groups * k], or null
  const float* residual = nullptr;  // as dst, or null
  float* dst = nullptr;             // [images, groups * k, p, q]
  Activation activation = Activation::kNone;

  std::int64_t images = 1, h = 1, w = 1, p = 1, q = 1;
  std::int64_t c = 1, k = 1, groups = 1;  // c and k of one group
  std::int64_t r = 1, s = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;
  std::int64_t weights_row =
      1;  // floats; no multiple of 128, or the rows of a tile share cache sets

  // The division of the work. A task is a block of pixels of one image times a part of the
  // channels.
  std::int64_t block_depth = 1;       // of K = c * r * s
  std::int64_t blocks_per_image = 1;  // of pixels
  std::int64_t channel_parts = 1;     // of every group's output channels
};

// Returns the bytes of scratch per thread, a multiple of 64. It shrinks if blocks_per_image grows.
TORCHALGO_DECLARE_KERNEL(std::int64_t conv_im2col_scratch_bytes(const ConvIm2col& conv))

// Runs tasks [begin, end) of images * blocks_per_image * channel_parts, parts outermost. `scratch`
// belongs to this thread and is aligned to 64 bytes.
TORCHALGO_DECLARE_KERNEL(void conv_im2col(const ConvIm2col& conv, std::int64_t begin,
                                          std::int64_t end, void* scratch))

}  // namespace torchalgo::kernels

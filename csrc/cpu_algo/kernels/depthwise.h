// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// A convolution with one filter per channel or with narrow groups. It computes 16 contiguous
/// channels at a time. Steps count floats.
///
/// In nChw16c, a plane is one channel block of one image, and a pixel has 16 floats and one group.
/// In nhwc, a plane is a whole image, and a pixel has c floats and ceil(c / 16) groups. The last
/// group ends at c and overlaps the one before it, so that no lane is masked. This needs c >= 16.
struct Depthwise {
  const float* src = nullptr;
  const float* weights = nullptr;   // [blocks, r, s, group, 16] or [r, s, group, c]
  const float* bias = nullptr;      // per channel; zeros if the problem has none
  const float* residual = nullptr;  // laid out as dst, or null
  float* dst = nullptr;
  std::int64_t blocks = 1;     // planes per image
  std::int64_t pixel = 16;     // floats of a pixel: 16 or c
  std::int64_t pad_lanes = 0;  // of the last block, zero in dst
  std::int64_t group = 1;      // channels that each output channel reads: for run_grouped
  std::int64_t h = 1, w = 1, p = 1, q = 1, r = 1, s = 1;
  std::int64_t src_plane = 0, dst_plane = 0;  // from one plane to the next
  std::int64_t stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1, dilation_w = 1;
  Activation activation = Activation::kNone;
};

// Computes the output rows [begin, end) of all n * blocks * p rows. `group` is 1.
TORCHALGO_DECLARE_KERNEL(void run_depthwise(const Depthwise& conv, std::int64_t begin,
                                            std::int64_t end))
// Does the same for src, residual and dst of bf16 elements in nhwc.
TORCHALGO_DECLARE_BF16_KERNEL(void run_depthwise_bf16(const Depthwise& conv, std::int64_t begin,
                                                      std::int64_t end))

}  // namespace torchalgo::kernels

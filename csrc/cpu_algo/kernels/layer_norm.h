// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// A layer norm, dst = (src - mean) / sqrt(variance + epsilon) * scale + shift, with the mean and
/// the variance of the channels of each pixel. It is equally exact if the mean is large compared
/// with the differences.
///
/// src and dst are [images, groups, pixels, lanes], and a channel is group * lanes + lane:
/// (c, h * w, 1) for nchw, (1, h * w, c) for nhwc and (blocks, h * w, 16) for nChw16c. Channels
/// from `channels` on are zero in src and become zero in dst.
struct LayerNorm {
  const float* src;
  const float* scale;  // one per channel
  const float* shift;
  float* dst;
  std::int64_t groups, pixels, lanes, channels;
  float epsilon;
};

/// Writes pixels [begin, end) of images * pixels.
TORCHALGO_DECLARE_KERNEL(void run_layer_norm(const LayerNorm& call, std::int64_t begin,
                                             std::int64_t end))

}  // namespace torchalgo::kernels

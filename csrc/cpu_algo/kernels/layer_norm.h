// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// A norm over the channels of each pixel:
///   dst = (src - center) / sqrt(factor * spread + epsilon) * scale + shift.
/// `center` is the mean of the channels if `is_centered`, otherwise 0. `spread` is the variance of
/// the channels if `is_about_mean`, otherwise the mean of their squares. Only a norm about the mean
/// can be centered. The variance is equally exact if the mean is large compared with the
/// differences.
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
  bool is_about_mean, is_centered;
  float factor, epsilon;
};

/// Writes pixels [begin, end) of images * pixels.
TORCHALGO_DECLARE_KERNEL(void run_layer_norm(const LayerNorm& call, std::int64_t begin,
                                             std::int64_t end))

}  // namespace torchalgo::kernels

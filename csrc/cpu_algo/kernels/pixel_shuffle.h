// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The strides of a tensor whose channels lie side by side, in elements: element (image, pixel, c)
/// lies at image * `image` + pixel * `pixel` + c / 16 * `block` + c % 16.
struct ChannelStrides {
  std::int64_t image, pixel, block;
};

/// A pixel shuffle of images of h * w pixels to `channels` channels.
struct PixelShuffle {
  const float* src;
  float* dst;
  ChannelStrides from, to;  // run_pixel_shuffle_planes does not use `to`
  std::int64_t h, w, channels, factor;
  std::int64_t padded;  // channels of dst in memory; those above `channels` become zero
};

/// Reads rows [begin, end) of n * h, each of which becomes `factor` rows of dst.
TORCHALGO_DECLARE_KERNEL(void run_pixel_shuffle(const PixelShuffle& shuffle, std::int64_t begin,
                                                std::int64_t end);
                         /// Does the same for elements of bf16. The struct counts these.
                         void run_pixel_shuffle_bf16(const PixelShuffle& shuffle,
                                                     std::int64_t begin, std::int64_t end);
                         /// Does the same with dst in nchw.
                         void run_pixel_shuffle_planes(const PixelShuffle& shuffle,
                                                       std::int64_t begin, std::int64_t end))

}  // namespace torchalgo::kernels

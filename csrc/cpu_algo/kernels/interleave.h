// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// An interleaving of channels: channel i * count + j of dst is channel i of source j.
struct Interleave {
  const float* const* sources;  // `count` of them, `channels` each
  std::int64_t count;
  std::int64_t channels;
  std::int64_t pixels;  // h * w; run_interleave_blocks
  std::int64_t pitch;   // floats from a pixel of a source to the next; run_interleave_pixels
  std::int64_t blocks;  // from an image of a source to the next; run_interleave_blocks
  float* dst;
};

/// Writes pixels [begin, end) of n * h * w in nhwc.
TORCHALGO_DECLARE_KERNEL(void run_interleave_pixels(const Interleave& interleave,
                                                    std::int64_t begin, std::int64_t end);
                         /// Does the same for elements of bf16. The struct counts these.
                         void run_interleave_pixels_bf16(const Interleave& interleave,
                                                         std::int64_t begin, std::int64_t end);
                         /// Writes dst's blocks [begin, end) of n * ceil(2 channels / 16) in
                         /// nChw16c. There are two sources. Their pad lanes are zero.
                         void run_interleave_blocks(const Interleave& interleave,
                                                    std::int64_t begin, std::int64_t end))

}  // namespace torchalgo::kernels

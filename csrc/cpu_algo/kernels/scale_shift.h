// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// A scale and shift per channel, dst = activation(src * scale + shift).
///
/// src and dst are [groups, pixels, lanes]: (n * c, h * w, 1) for nchw, (n, h * w, c) for nhwc and
/// (n * blocks, h * w, 16) for nChw16c. Group g reads scale and shift at (g % periods) * lanes.
struct ScaleShift {
  const float* src;
  const float* scale;  // null for 1
  const float* shift;  // null for 0; at most one of both is null
  float* dst;
  std::int64_t pixels, lanes, periods;
  Activation activation;
};

/// Writes pixels [begin, end) of groups * pixels. run_scale_shift_bf16 casts src and dst to
/// elements of bf16 in nhwc, run_channelwise_bf16 scale and shift too.
TORCHALGO_DECLARE_KERNEL(void run_scale_shift(const ScaleShift& call, std::int64_t begin,
                                              std::int64_t end))
TORCHALGO_DECLARE_BF16_KERNEL(void run_scale_shift_bf16(const ScaleShift& call, std::int64_t begin,
                                                        std::int64_t end);
                              void run_channelwise_bf16(const ScaleShift& call, std::int64_t begin,
                                                        std::int64_t end))

}  // namespace torchalgo::kernels

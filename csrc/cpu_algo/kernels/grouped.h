// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu_algo/kernels/depthwise.h"

namespace torchalgo::kernels {

// Computes the output rows [begin, end) of a 3x3 convolution without dilation. The stride is 1 or
// 2, the same in both directions. Each group has 2, 4, 8 or 16 input channels and as many output
// channels.
TORCHALGO_DECLARE_KERNEL(void run_grouped(const Depthwise& conv, std::int64_t begin,
                                          std::int64_t end))

}  // namespace torchalgo::kernels

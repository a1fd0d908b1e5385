// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu_algo/kernels/depthwise.h"

namespace torchalgo::kernels {

// Computes the output rows [begin, end) of a 3x3 convolution without dilation, of one stride in
// both directions, 1 or 2, whose groups make of 2, 4, 8 or 16 channels as many.
TORCHALGO_DECLARE_KERNEL(void run_grouped(const Depthwise& conv, std::int64_t begin,
                                          std::int64_t end))

}  // namespace torchalgo::kernels

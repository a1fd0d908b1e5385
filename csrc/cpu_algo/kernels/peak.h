// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// Nothing but work at the highest rate that the build has: what a machine can do at most.
///
/// run_multiply_adds: `rounds` times as many independent multiply-adds as hide their latency;
/// multiply_add_flops() of one round. It returns a sum that needs them all, from `seed`.
/// run_reads: the sum of `count` floats, a multiple of 256. run_copy: `src` to `dst`, as many.
TORCHALGO_DECLARE_KERNEL(float run_multiply_adds(std::int64_t rounds, float seed);
                         double multiply_add_flops();
                         float run_reads(const float* src, std::int64_t count);
                         void run_copy(const float* src, float* dst, std::int64_t count))

}  // namespace torchalgo::kernels

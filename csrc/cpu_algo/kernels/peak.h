// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// Kernels that do nothing but work at the highest rate of the build, to measure a machine's peak.
///
/// run_multiply_adds runs `rounds` rounds of independent multiply-adds, as many per round as hide
/// their latency. It returns a sum that depends on all of them and on `seed`. multiply_add_flops
/// returns the operations of one round. run_reads returns the sum of `count` floats, a multiple of
/// 256. run_copy copies `count` floats from `src` to `dst`.
TORCHALGO_DECLARE_KERNEL(float run_multiply_adds(std::int64_t rounds, float seed);
                         double multiply_add_flops();
                         float run_reads(const float* src, std::int64_t count);
                         void run_copy(const float* src, float* dst, std::int64_t count))

}  // namespace torchalgo::kernels

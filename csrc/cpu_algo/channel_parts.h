// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Copies of parts of channels on all threads, for cpu.concat and cpu.slice. A slice is a
// concatenation of one part.

#include <cstdint>
#include <string>

#include "cpu_algo/kernels/concat.h"
#include "ir/algorithm.h"

namespace torchalgo::cpu {

struct PartKernels {
  decltype(&kernels::default_isa::run_concat_runs) runs, runs_bf16;
  decltype(&kernels::default_isa::run_concat_blocks) blocks;
};
[[nodiscard]] PartKernels part_kernels(const std::string& isa);

/// Fills concat.dst, which has `n` images in `layout`. It uses run_concat_blocks if `by_blocks` is
/// true, else run_concat_runs or run_concat_runs_bf16.
void run_parts(const PartKernels& run, const kernels::Concat& concat, Layout layout, std::int64_t n,
               bool by_blocks, const Threads& threads);

}  // namespace torchalgo::cpu

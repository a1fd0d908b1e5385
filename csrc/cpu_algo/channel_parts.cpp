// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/channel_parts.h"

#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {

PartKernels part_kernels(const std::string& isa) {
  return {TORCHALGO_PICK_KERNEL(isa, run_concat_runs),
          TORCHALGO_PICK_KERNEL(isa, run_concat_runs_bf16),
          TORCHALGO_PICK_KERNEL(isa, run_concat_blocks)};
}

void run_parts(const PartKernels& run, const kernels::Concat& concat, Layout layout, std::int64_t n,
               bool by_blocks, const Threads& threads) {
  const LaneShape shape = lane_shape(layout, n, concat.channels);
  const auto runs = is_typed(layout) ? run.runs_bf16 : run.runs;
  if (by_blocks) {
    parallel_for(threads, shape.groups, grain_of(concat.pixels * shape.lanes), run.blocks, concat);
  } else {
    parallel_for(threads, shape.groups * concat.pixels * shape.lanes, grain_of(1), runs, concat);
  }
}

}  // namespace torchalgo::cpu

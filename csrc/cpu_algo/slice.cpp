// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>

#include "cpu_algo/kernels/concat.h"
#include "cpu_algo/rows.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

struct SliceKernels {
  decltype(&kernels::default_isa::run_concat_runs) runs;
  decltype(&kernels::default_isa::run_concat_blocks) blocks;
};

// A concatenation of one part.
at::Tensor run_slice(const SliceKernels& run, const Call& call) {
  const auto& problem = std::get<SliceProblem>(call.problem);
  const Layout layout = call.primitive.src;
  const std::int64_t pixels = problem.h * problem.w;
  kernels::ConcatSource part = {};
  part.data = floats(call.src[0]);
  part.channels = problem.k;
  kernels::Concat concat = {};
  concat.sources = &part;
  concat.source_count = 1;
  concat.dst = call.dst.mutable_data_ptr<float>();
  concat.channels = problem.k;
  concat.pixels = pixels;
  if (is_blocked(layout)) {
    const std::int64_t block = block_size(layout);
    part.first = problem.begin;
    part.blocks = (problem.c + block - 1) / block;
    const LaneShape shape = lane_shape(layout, problem.n, problem.k);
    at::parallel_for(0, shape.groups, grain_of(pixels * block),
                     [&](std::int64_t begin, std::int64_t end) { run.blocks(concat, begin, end); });
    return call.dst;
  }
  const std::int64_t together = layout == Layout::kNhwc ? 1 : pixels;
  part.data += problem.begin * together;
  part.pitch = problem.c * together;
  part.run = concat.row = problem.k * together;
  at::parallel_for(0, call.dst.numel(), grain_of(1),
                   [&](std::int64_t begin, std::int64_t end) { run.runs(concat, begin, end); });
  return call.dst;
}

}  // namespace

Algorithm slice(const std::string& isa) {
  Algorithm row;
  row.name = "cpu.slice";
  row.offer = [](const Problem& problem, const Device&) -> Offer {
    const auto* slice = std::get_if<SliceProblem>(&problem);
    if (slice == nullptr) return {{}, "needs a slice"};
    return offer_f32("cpu.slice", slice->dtype, {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
  };
  row.run = [run = SliceKernels{TORCHALGO_PICK_KERNEL(isa, run_concat_runs),
                                TORCHALGO_PICK_KERNEL(isa, run_concat_blocks)}](const Call& call) {
    return run_slice(run, call);
  };
  return row;
}

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/channel_parts.h"
#include "cpu_algo/rows.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

at::Tensor run_slice(const PartKernels& run, const Call& call) {
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
  } else {
    const std::int64_t together = layout == Layout::kNhwc ? 1 : pixels;
    part.data += problem.begin * together;
    part.pitch = problem.c * together;
    part.run = concat.row = problem.k * together;
  }
  return run_parts(run, concat, call, problem.n, is_blocked(layout));
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
  row.run = [run = part_kernels(isa)](const Call& call) { return run_slice(run, call); };
  return row;
}

}  // namespace torchalgo::cpu

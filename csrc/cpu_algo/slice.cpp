// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/channel_parts.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

at::Tensor run_slice(const PartKernels& run, const SliceProblem& problem, Layout layout,
                     const KernelArgs& args) {
  const std::int64_t pixels = problem.h * problem.w;
  kernels::ConcatSource part = {};
  part.data = floats(args.src[0]);
  part.channels = problem.k;
  kernels::Concat concat = {};
  concat.sources = &part;
  concat.source_count = 1;
  concat.dst = args.dst.mutable_data_ptr<float>();
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
  return run_parts(run, concat, args.dst, layout, problem.n, is_blocked(layout));
}

}  // namespace

Algorithm slice(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = "cpu.slice";
  algorithm.rounding = 1;
  algorithm.offer = [](const Problem& problem, const Device&) -> Offer {
    const auto* slice = std::get_if<SliceProblem>(&problem);
    if (slice == nullptr) return {{}, "needs a slice"};
    return offer_f32("cpu.slice", slice->dtype, {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
  };
  algorithm.prepare = [run = part_kernels(isa)](const Problem& problem, const Primitive& primitive,
                                                const Device&) -> Kernel {
    return {.problem = problem,
            .primitive = primitive,
            .run = [run, slice = std::get<SliceProblem>(problem), layout = primitive.src](
                       const KernelArgs& args) { return run_slice(run, slice, layout, args); }};
  };
  return algorithm;
}

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/channel_parts.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

void run_slice(const PartKernels& run, const SliceProblem& problem, Layout layout,
               const RunArgs& args, const Threads& threads) {
  const std::int64_t pixels = problem.h * problem.w;
  kernels::ConcatSource part = {};
  part.data = args.src[0];
  part.channels = problem.k;
  kernels::Concat concat = {};
  concat.sources = &part;
  concat.source_count = 1;
  concat.dst = args.dst;
  concat.channels = problem.k;
  concat.pixels = pixels;
  if (is_blocked(layout)) {
    const std::int64_t block = block_size(layout);
    part.first = problem.begin;
    part.blocks = (problem.c + block - 1) / block;
  } else {
    const std::int64_t together = untyped(layout) == Layout::kNhwc ? 1 : pixels;
    part.data = advance(part.data, layout, problem.begin * together);
    part.pitch = problem.c * together;
    part.run = concat.row = problem.k * together;
  }
  run_parts(run, concat, layout, problem.n, is_blocked(layout), threads);
}

Offer offer_slice(const Problem& problem, const Device&) {
  const auto* slice = std::get_if<SliceProblem>(&problem);
  if (slice == nullptr) return {{}, "needs a slice"};
  return offer_f32("cpu.slice", slice->dtype,
                   {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c, Layout::kNhwcBf16});
}

}  // namespace

Algorithm slice(const std::string& isa) {
  const auto bind = [run = part_kernels(isa)](const Problem& problem, const Primitive& primitive,
                                              const Device&) {
    return PlainKernel{
        .run = [run, slice = std::get<SliceProblem>(problem), layout = primitive.src](
                   const RunArgs& args, const Threads& threads) {
          run_slice(run, slice, layout, args, threads);
        }};
  };
  return with_bf16_if_fast(
      {.name = "cpu.slice", .rounding = 1, .offer = offer_slice, .bind = bind});
}

}  // namespace torchalgo::cpu

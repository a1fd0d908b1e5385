// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/resize.h"

#include <functional>

#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

struct Kernels {
  decltype(&kernels::default_isa::run_resize) run, run_bf16;
};

PlainKernel bind_resize(const Kernels& kernels, const Problem& problem, const Primitive& primitive,
                        const Device&) {
  const auto kernel = is_typed(primitive.src) ? kernels.run_bf16 : kernels.run;
  const auto& resize = std::get<ResizeProblem>(problem);
  const LaneShape shape = lane_shape(primitive.src, resize.n, resize.c);
  const bool is_nearest = resize.kind == ResizeKind::kNearest;
  const kernels::Resize sizes = {nullptr,  nullptr,    shape.lanes,
                                 resize.h, resize.w,   resize.p,
                                 resize.q, is_nearest, resize.align_corners};
  const std::int64_t tasks = shape.groups * resize.p, grain = grain_of(resize.q * shape.lanes);
  return {.run = [=](const RunArgs& args, const Threads& threads) {
    kernels::Resize part = sizes;
    part.src = args.src[0];
    part.dst = args.dst;
    parallel_for(threads, tasks, grain, kernel, part);
  }};
}

Offer offer_resize(const Problem& problem, const Device&) {
  const auto* resize = std::get_if<ResizeProblem>(&problem);
  if (resize == nullptr) return {{}, "needs a resize"};
  return offer_f32("cpu.resize", resize->dtype,
                   {Layout::kNhwc, Layout::kNChw16c, Layout::kNhwcBf16});
}

}  // namespace

Algorithm resize(const std::string& isa) {
  const Kernels kernels = {TORCHALGO_PICK_KERNEL(isa, run_resize),
                           TORCHALGO_PICK_KERNEL(isa, run_resize_bf16)};
  return with_bf16_if_fast({.name = "cpu.resize",
                            .version = 2,
                            .rounding = 1,
                            .offer = offer_resize,
                            .bind = std::bind_front(bind_resize, kernels)});
}

}  // namespace torchalgo::cpu

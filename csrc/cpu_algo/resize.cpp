// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/resize.h"

#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {

Algorithm resize(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = "cpu.resize";
  algorithm.version = 2;
  algorithm.rounding = 1;
  set_offers(algorithm, [](const Problem& problem) -> Offer {
    const auto* resize = std::get_if<ResizeProblem>(&problem);
    if (resize == nullptr) return {{}, "needs a resize"};
    return offer_f32("cpu.resize", resize->dtype,
                     {Layout::kNhwc, Layout::kNChw16c, Layout::kNhwcBf16});
  });
  algorithm.bind = [run = TORCHALGO_PICK_KERNEL(isa, run_resize),
                    run_bf16 = TORCHALGO_PICK_KERNEL(isa, run_resize_bf16)](
                       const Problem& problem, const Primitive& primitive,
                       const Device&) -> PlainKernel {
    const auto kernel = is_typed(primitive.src) ? run_bf16 : run;
    const auto& resize = std::get<ResizeProblem>(problem);
    const LaneShape shape = lane_shape(primitive.src, resize.n, resize.c);
    const kernels::Resize sizes = {nullptr,
                                   nullptr,
                                   shape.lanes,
                                   resize.h,
                                   resize.w,
                                   resize.p,
                                   resize.q,
                                   resize.kind == ResizeKind::kNearest,
                                   resize.align_corners};
    const std::int64_t tasks = shape.groups * resize.p, grain = grain_of(resize.q * shape.lanes);
    return {.run = [=](const RunArgs& args, const Threads& threads) {
      kernels::Resize part = sizes;
      part.src = args.src[0];
      part.dst = args.dst;
      parallel_for(threads, tasks, grain,
                   [&](std::int64_t begin, std::int64_t end) { kernel(part, begin, end); });
    }};
  };
  return algorithm;
}

}  // namespace torchalgo::cpu

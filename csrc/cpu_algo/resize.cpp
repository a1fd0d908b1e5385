// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/resize.h"

#include <ATen/Parallel.h>

#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {

Algorithm resize(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = "cpu.resize";
  algorithm.version = 2;
  algorithm.rounding = 1;
  algorithm.offer = [](const Problem& problem, const Device&) -> Offer {
    const auto* resize = std::get_if<ResizeProblem>(&problem);
    if (resize == nullptr) return {{}, "needs a resize"};
    return offer_f32("cpu.resize", resize->dtype, {Layout::kNhwc, Layout::kNChw16c});
  };
  algorithm.prepare = [kernel = TORCHALGO_PICK_KERNEL(isa, run_resize)](const Problem& problem,
                                                                        const Primitive& primitive,
                                                                        const Device&) -> Kernel {
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
    return {.problem = problem, .primitive = primitive, .run = [=](const KernelArgs& args) {
              kernels::Resize part = sizes;
              part.src = floats(args.src[0]);
              part.dst = args.dst.mutable_data_ptr<float>();
              at::parallel_for(0, tasks, grain, [&](std::int64_t begin, std::int64_t end) {
                kernel(part, begin, end);
              });
              return args.dst;
            }};
  };
  return algorithm;
}

}  // namespace torchalgo::cpu

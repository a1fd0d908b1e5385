// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/resize.h"

#include <ATen/Parallel.h>

#include "cpu_algo/rows.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {

Algorithm resize(const std::string& isa) {
  Algorithm row;
  row.name = "cpu.resize";
  row.offer = [](const Problem& problem, const Device&) -> Offer {
    const auto* resize = std::get_if<ResizeProblem>(&problem);
    if (resize == nullptr) return {{}, "needs a resize"};
    return offer_f32("cpu.resize", resize->dtype, {Layout::kNhwc, Layout::kNChw16c});
  };
  row.run = [kernel = TORCHALGO_PICK_KERNEL(isa, run_resize)](const Call& call) {
    const auto& problem = std::get<ResizeProblem>(call.problem);
    const LaneShape shape = lane_shape(call.primitive.src, problem.n, problem.c);
    const kernels::Resize resize = {floats(call.src[0]),
                                    call.dst.mutable_data_ptr<float>(),
                                    shape.lanes,
                                    problem.h,
                                    problem.w,
                                    problem.p,
                                    problem.q,
                                    problem.kind == ResizeKind::kNearest,
                                    problem.align_corners};
    at::parallel_for(0, shape.groups * problem.p, grain_of(problem.q * shape.lanes),
                     [&](std::int64_t begin, std::int64_t end) { kernel(resize, begin, end); });
    return call.dst;
  };
  return row;
}

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#include "ir/algorithm.h"
#include "ir/transform_shape.h"
#include "provider/kernel.h"

namespace torchalgo::layout {

// Makes the algorithm of ATen's copy between the strided layouts, of any types, 4-D or 5-D.
Algorithm aten() {
  Algorithm algorithm;
  algorithm.name = "layout.aten";
  algorithm.rounding = 1;
  algorithm.runs_on_cuda = true;
  algorithm.offer = [](const Problem& problem, const Device&) -> Offer {
    if (std::string refusal = refuse_transform(problem); !refusal.empty()) return {{}, refusal};
    const auto& change = std::get<TransformProblem>(problem);
    if (is_blocked(change.from) || is_blocked(change.to)) return {{}, "needs nchw and nhwc"};
    return {{{"layout.aten", change.from, change.to}}, {}};
  };
  algorithm.prepare = [](const Problem& problem, const Primitive& primitive,
                         const Device&) -> Kernel {
    return {.problem = problem, .primitive = primitive, .run = [](const KernelArgs& args) {
              return args.dst.copy_(args.src[0]);
            }};
  };
  return algorithm;
}

}  // namespace torchalgo::layout

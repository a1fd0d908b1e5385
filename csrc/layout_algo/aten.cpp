// SPDX-License-Identifier: BSD-3-Clause
#include "layout_algo/layout_pair.h"
#include "provider/algorithm.h"

namespace torchalgo::layout {

// ATen's copy: nchw <-> nhwc of any type, 4-D or 5-D.
Algorithm aten(const std::string& /*isa*/) {
  Algorithm row;
  row.name = "layout.aten";
  row.rounding = 1;
  row.runs_on_cuda = true;
  row.offer = [](const Problem& problem, const Device&) -> Offer {
    const LayoutPair pair = layout_pair(problem);
    if (!pair.refusal.empty()) return {{}, pair.refusal};
    if (is_blocked(pair.from) || is_blocked(pair.to)) return {{}, "needs nchw and nhwc"};
    return {{{"layout.aten", pair.from, pair.to}}, {}};
  };
  row.prepare = [](const Problem& problem, const Primitive& primitive, const Device&) -> Kernel {
    return {.problem = problem, .primitive = primitive, .run = [](const KernelArgs& args) {
              return args.dst.copy_(args.src[0]);
            }};
  };
  return row;
}

}  // namespace torchalgo::layout

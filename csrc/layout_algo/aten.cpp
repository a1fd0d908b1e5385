// SPDX-License-Identifier: BSD-3-Clause
#include "layout_algo/rows.h"

namespace torchalgo::layout {

Algorithm aten() {
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

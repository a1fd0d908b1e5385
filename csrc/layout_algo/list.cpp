// SPDX-License-Identifier: BSD-3-Clause
#include "layout_algo/list.h"

#include "layout_algo/rows.h"

namespace torchalgo {

const Algorithms& layout_algorithms() {
  static const Algorithms algorithms = {
      layout::aten(),
      layout::tiled(),
      layout::cuda_tiled(),
  };
  return algorithms;
}

}  // namespace torchalgo

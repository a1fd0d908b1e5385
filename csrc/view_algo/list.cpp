// SPDX-License-Identifier: BSD-3-Clause
#include "view_algo/list.h"

#include "view_algo/rows.h"

namespace torchalgo {

const Algorithms& view_algorithms() {
  static const Algorithms algorithms = {
      view::relabel(),
      view::concat(),
      view::slice(),
  };
  return algorithms;
}

}  // namespace torchalgo

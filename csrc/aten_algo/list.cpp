// SPDX-License-Identifier: BSD-3-Clause
#include "aten_algo/list.h"

#include "aten_algo/rows.h"

namespace torchalgo {

const Algorithms& aten_algorithms() {
  static const Algorithms algorithms = {
      aten::conv(),    aten::conv_chain(),  aten::prepacked(), aten::pool(),
      aten::eltwise(), aten::scale_shift(), aten::concat(),    aten::slice(),
      aten::shuffle(), aten::resize(),      aten::linear(),
  };
  return algorithms;
}

}  // namespace torchalgo

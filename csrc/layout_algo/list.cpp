// SPDX-License-Identifier: BSD-3-Clause
#include "layout_algo/list.h"

#include "cpu_algo/list.h"
#include "provider/cpu_device.h"
#include "provider/with_tensors.h"

namespace torchalgo {
namespace layout {

Algorithm aten();  // aten.cpp

}  // namespace layout

Algorithms layout_algorithms(const std::string& isa) {
  Algorithms list = {layout::aten(), cpu::tiled(isa)};
  prepare_with_tensors(list);
  return list;
}

const Algorithms& layout_algorithms() {
  static const Algorithms algorithms = layout_algorithms(cpu_device().isa);
  return algorithms;
}

}  // namespace torchalgo

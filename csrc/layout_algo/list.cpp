// SPDX-License-Identifier: BSD-3-Clause
#include "layout_algo/list.h"

#include "cpu_algo/list.h"
#include "provider/cpu_device.h"
#include "provider/with_tensors.h"

// The algorithms, one line each, in the order in which they are listed. NAME stands for the
// function NAME(isa), which NAME.cpp defines and which returns an Algorithm.
// clang-format off
#define TORCHALGO_LAYOUT_ALGORITHMS(ALGORITHM) \
  ALGORITHM(aten)       \
  ALGORITHM(cuda_tiled)
// clang-format on

namespace torchalgo {
namespace layout {

#define DECLARE(name) Algorithm name(const std::string& isa);
TORCHALGO_LAYOUT_ALGORITHMS(DECLARE)

}  // namespace layout

Algorithms layout_algorithms(const std::string& isa) {
#define CALL(name) layout::name(isa),
  Algorithms list = {TORCHALGO_LAYOUT_ALGORITHMS(CALL)};
  list.insert(list.begin() + 1, cpu::tiled(isa));
  prepare_with_tensors(list);
  return list;
}

const Algorithms& layout_algorithms() {
  static const Algorithms algorithms = layout_algorithms(cpu_device().isa);
  return algorithms;
}

}  // namespace torchalgo

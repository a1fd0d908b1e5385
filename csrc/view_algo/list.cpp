// SPDX-License-Identifier: BSD-3-Clause
#include "view_algo/list.h"

// The algorithms, one line each, in the order in which they are listed. NAME stands for the
// function NAME(), which NAME.cpp defines and which returns an Algorithm.
// clang-format off
#define TORCHALGO_VIEW_ALGORITHMS(ALGORITHM) \
  ALGORITHM(relabel) \
  ALGORITHM(concat)  \
  ALGORITHM(slice)
// clang-format on

namespace torchalgo {
namespace view {

#define DECLARE(name) Algorithm name();
TORCHALGO_VIEW_ALGORITHMS(DECLARE)

}  // namespace view

const Algorithms& view_algorithms() {
#define CALL(name) view::name(),
  static const Algorithms algorithms = {TORCHALGO_VIEW_ALGORITHMS(CALL)};
  return algorithms;
}

}  // namespace torchalgo

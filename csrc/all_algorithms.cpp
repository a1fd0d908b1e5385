// SPDX-License-Identifier: BSD-3-Clause
#include "all_algorithms.h"

#include "aten_algo/list.h"
#include "cpu_algo/list.h"
#include "cudnn_algo/list.h"
#include "layout_algo/list.h"
#include "view_algo/list.h"

namespace torchalgo {

const Algorithms& all_algorithms() {
  static const Algorithms kAll = [] {
    Algorithms all;
    for (const Algorithms* list : {&aten_algorithms(), &cpu_algorithms(), &cudnn_algorithms(),
                                   &layout_algorithms(), &view_algorithms()}) {
      all.insert(all.end(), list->begin(), list->end());
    }
    return all;
  }();
  return kAll;
}

}  // namespace torchalgo

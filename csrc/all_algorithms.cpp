// SPDX-License-Identifier: BSD-3-Clause
#include "all_algorithms.h"

#include "aten_algo/list.h"
#include "cpu_algo/list.h"
#include "cuda_algo/list.h"
#include "cudnn_algo/list.h"
#include "ir/view.h"
#include "layout_algo/list.h"
#include "provider/cpu_device.h"
#include "provider/with_tensors.h"
#include "view_algo/list.h"

namespace torchalgo {

const Algorithms& all_algorithms() {
  static const Algorithms kAll = [] {
    Algorithms own = cpu_algorithms(cpu_device().isa);
    prepare_with_tensors(own);
    Algorithms all = aten_algorithms();
    for (const Algorithms& list :
         {own, cudnn_algorithms(), layout_algorithms(), cuda_algorithms(), view_algorithms()}) {
      all.insert(all.end(), list.begin(), list.end());
    }
    return all;
  }();
  return kAll;
}

bool has_own_kernel(std::string_view primitive) {
  if (is_view(primitive)) return true;
  const Algorithm* const found = find_algorithm(all_algorithms(), primitive);
  // cpu.fft is bound to plain memory as well, but calls torch's operations.
  const bool calls_torch = find_algorithm(aten_algorithms(), primitive) != nullptr;
  return found != nullptr && found->bind && !calls_torch;
}

}  // namespace torchalgo

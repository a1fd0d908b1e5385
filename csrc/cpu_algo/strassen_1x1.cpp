// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/conv_gemm.h"

namespace torchalgo::cpu {
namespace {

std::string refuse(const ConvProblem& conv) {
  if (!can_strassen(conv, Layout::kNChw16c, Layout::kNChw16c))
    return "needs a 1x1 filter without stride, padding or groups, more than one pixel, and 64 "
           "channels or more";
  return {};
}

}  // namespace

Algorithm strassen_1x1(const std::string& isa) {
  return make_conv_gemm({.name = "cpu.strassen_1x1",
                         .layouts = {{Layout::kNChw16c, Layout::kNChw16c}},
                         .refuse = refuse,
                         .widths = {3},
                         .strassen = true},
                        isa);
}

}  // namespace torchalgo::cpu

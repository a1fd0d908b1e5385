// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/conv.h"
#include "cpu_algo/conv_gemm.h"

namespace torchalgo::cpu {
namespace {

std::string refuse(const ConvProblem& conv) {
  if (conv.r == 1 && conv.s == 1 && is_unpadded(conv) && conv.groups == 1) {
    return "leaves 1x1 filters to cpu.conv1x1";
  }
  return refuse_broken_groups(conv);
}

}  // namespace

Algorithm direct(const std::string& isa) {
  return make_conv_gemm(
      {.name = "cpu.direct", .layouts = {{Layout::kNChw16c, Layout::kNChw16c}}, .refuse = refuse},
      isa);
}

}  // namespace torchalgo::cpu

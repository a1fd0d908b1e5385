// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "cpu_algo/make_conv_gemm.h"

namespace torchalgo::cpu {
namespace {

std::string refuse(const ConvProblem& conv) {
  if (conv.r == 1 && conv.s == 1 && is_unpadded(conv) && conv.groups == 1) {
    return "leaves 1x1 filters to cpu.conv1x1";
  }
  if (conv.groups > 1 && (conv.c / conv.groups % 16 != 0 || conv.k / conv.groups % 16 != 0)) {
    return fmt::format("needs groups of a multiple of 16 channels, got {} to {}",
                       conv.c / conv.groups, conv.k / conv.groups);
  }
  return {};
}

}  // namespace

Algorithm direct(const std::string& isa) {
  return make_conv_gemm(
      {.name = "cpu.direct", .layouts = {{Layout::kNChw16c, Layout::kNChw16c}}, .refuse = refuse},
      isa);
}

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "cpu_algo/conv_gemm.h"

namespace torchalgo::cpu {
namespace {

std::string refuse(const ConvProblem& conv) {
  if (conv.r != 1 || conv.s != 1) {
    return fmt::format("needs a 1x1 filter, got {}x{}", conv.r, conv.s);
  }
  if (!is_unpadded(conv)) return "needs an image without zeros around it";
  if (conv.groups != 1) return fmt::format("needs 1 group, got {}", conv.groups);
  return {};
}

}  // namespace

Algorithm conv1x1(const std::string& isa) {
  return make_conv_gemm({.name = "cpu.conv1x1",
                         .layouts = {{Layout::kNChw16c, Layout::kNChw16c}},
                         .refuse = refuse,
                         .widths = {3, 4}},
                        isa);
}

}  // namespace torchalgo::cpu

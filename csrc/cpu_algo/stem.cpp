// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "cpu_algo/conv_gemm.h"

namespace torchalgo::cpu {
namespace {

std::string refuse(const ConvProblem& conv) {
  if (conv.c > kMostImageChannels) {
    return fmt::format("needs at most {} input channels, got {}", kMostImageChannels, conv.c);
  }
  if (conv.groups != 1) return fmt::format("needs 1 group, got {}", conv.groups);
  return {};
}

}  // namespace

// Makes the algorithm for a network's first convolution. It reads the image in the caller's layout
// and writes nChw16c.
Algorithm stem(const std::string& isa) {
  return make_conv_gemm(
      {.name = "cpu.stem",
       .layouts = {{Layout::kNchw, Layout::kNChw16c}, {Layout::kNhwc, Layout::kNChw16c}},
       .refuse = refuse,
       .widths = {3, 4}},
      isa);
}

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "cpu_algo/conv_gemm.h"

namespace torchalgo::cpu {
namespace {

std::string refuse(const ConvProblem& conv) {
  if (conv.groups > 1 && conv.k / conv.groups % 16 != 0) {
    return fmt::format("needs groups of a multiple of 16 output channels, got {}",
                       conv.k / conv.groups);
  }
  return {};
}

}  // namespace

// Makes the algorithm for nhwc. The pixels are the rows of the im2row matrix, so a copy is needed
// only for padding.
Algorithm im2row_gemm(const std::string& isa) {
  return make_conv_gemm(
      {.name = "cpu.im2row_gemm", .layouts = {{Layout::kNhwc, Layout::kNhwc}}, .refuse = refuse},
      isa);
}

}  // namespace torchalgo::cpu

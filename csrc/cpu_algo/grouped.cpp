// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/grouped.h"

#include <fmt/format.h>

#include <string>

#include "cpu_algo/depthwise.h"

namespace torchalgo::cpu {
namespace {

std::string refuse(const ConvProblem& conv) {
  const std::int64_t width = conv.c / conv.groups;
  if (conv.k != conv.c || width < 2 || 16 % width != 0) {
    return fmt::format(
        "needs groups of 2, 4, 8 or 16 channels and as many made of them, got {} to {} in {}",
        conv.c, conv.k, conv.groups);
  }
  if (conv.r != 3 || conv.s != 3 || conv.dilation_h * conv.dilation_w != 1)
    return "needs a 3x3 filter without dilation";
  if (conv.stride_h != conv.stride_w || conv.stride_w > 2)
    return fmt::format("needs stride 1 or 2, got {}x{}", conv.stride_h, conv.stride_w);
  return {};
}

}  // namespace

Algorithm grouped(const std::string& isa) {
  return make_depthwise({.name = "cpu.grouped",
                         .version = 2,
                         .refuse = refuse,
                         .run = TORCHALGO_PICK_KERNEL(isa, run_grouped)});
}

}  // namespace torchalgo::cpu

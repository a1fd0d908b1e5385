// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <string>

#include "cpu_algo/make_depthwise.h"

namespace torchalgo::cpu {
namespace {

std::string refuse(const ConvProblem& conv) {
  if (conv.groups != conv.c)
    return fmt::format("needs groups equal to the {} channels, got {}", conv.c, conv.groups);
  if (conv.k != conv.c)
    return fmt::format("needs one output channel per channel, got {} of {}", conv.k, conv.c);
  return {};
}

}  // namespace

Algorithm depthwise(const std::string& isa) {
  return make_depthwise({.name = "cpu.depthwise",
                         .version = 6,
                         .refuse = refuse,
                         .run = TORCHALGO_PICK_KERNEL(isa, run_depthwise)});
}

}  // namespace torchalgo::cpu

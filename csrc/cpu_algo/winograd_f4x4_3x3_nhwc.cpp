// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/winograd.h"

namespace torchalgo::cpu {

Algorithm winograd_f4x4_3x3_nhwc(const std::string& isa) {
  return make_winograd(
      {.name = "cpu.winograd_f4x4_3x3_nhwc", .tile = {{4, 3}, {4, 3}}, .layout = Layout::kNhwc},
      isa);
}

}  // namespace torchalgo::cpu

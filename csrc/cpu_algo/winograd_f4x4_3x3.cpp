// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/rows.h"
#include "cpu_algo/winograd.h"

namespace torchalgo::cpu {

Algorithm winograd_f4x4_3x3(const std::string& isa) {
  static constexpr int kBlockSizes[] = {14, 28, 56};
  return make_winograd({"cpu.winograd_f4x4_3x3", 4, kBlockSizes}, isa);
}

}  // namespace torchalgo::cpu

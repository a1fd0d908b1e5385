// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/depthwise.h"

#include "cpu_algo/kernels/depthwise_kernel.h"

namespace torchalgo::kernels::TORCHALGO_ISA {

void run_depthwise_bf16(const Depthwise& conv, std::int64_t begin, std::int64_t end) {
  run_strips<Bf16>(conv, begin, end);
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/instances.h"

namespace torchalgo::kernels::TORCHALGO_ISA {

std::atomic<std::uint64_t> noted_instances[kFamilies];

}  // namespace torchalgo::kernels::TORCHALGO_ISA

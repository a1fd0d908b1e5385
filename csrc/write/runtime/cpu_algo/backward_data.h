// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Takes the place of csrc/cpu_algo/backward_data.h in a program without gradients and transposed
// convolutions.

#include <utility>

#include "ir/algorithm.h"

namespace torchalgo::cpu {

[[nodiscard]] inline Algorithm with_backward_data(Algorithm forward) { return forward; }

}  // namespace torchalgo::cpu

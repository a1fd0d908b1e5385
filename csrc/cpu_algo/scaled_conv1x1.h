// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "ir/problem.h"

namespace torchalgo::cpu {

/// Returns why a problem is no 1x1 convolution of act(x * scale + shift); empty if it is one.
[[nodiscard]] std::string refuse_scaled_conv1x1(const Problem& problem);

}  // namespace torchalgo::cpu

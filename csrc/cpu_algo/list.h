// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "ir/algorithm.h"

namespace torchalgo {

/// Returns our own CPU algorithms with the kernels that were built for the instruction set `isa`. A
/// new algorithm is one file that defines it and one line in list.cpp. They have `bind`, and get
/// `prepare` from prepare_with_tensors().
[[nodiscard]] Algorithms cpu_algorithms(const std::string& isa);

}  // namespace torchalgo

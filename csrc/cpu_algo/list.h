// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "provider/algorithm.h"

namespace torchalgo {

/// Returns our own CPU algorithms. A new algorithm is one file that defines it and one line in
/// list.cpp.
[[nodiscard]] const Algorithms& cpu_algorithms();

/// Returns the same algorithms with the kernels that were built for the instruction set `isa`.
[[nodiscard]] Algorithms cpu_algorithms(const std::string& isa);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "ir/algorithm.h"

namespace torchalgo {

/// Returns the algorithms for changes of layout. Each takes TransformProblems and offers one
/// primitive, from -> to.
[[nodiscard]] const Algorithms& layout_algorithms();

/// Returns the same algorithms with the kernels that were built for the instruction set `isa`.
[[nodiscard]] Algorithms layout_algorithms(const std::string& isa);

}  // namespace torchalgo

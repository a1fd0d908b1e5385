// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "ir/problem.h"

namespace torchalgo {

/// Returns C++ statements that make the variable `problem` and give it the fields of a problem, as
/// in `SliceProblem problem; problem.c = 8; problem.k = 4;`. So an emitted program needs no parser.
/// @throws InternalError  for a problem that no emitted program has.
[[nodiscard]] std::string problem_code(const Problem& problem);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "planner/encode.h"

namespace torchalgo::planner {

/// Why the model has no choice, for an error text: the first value that no reader can get in a
/// layout that it takes, or that two chains exclude each other.
[[nodiscard]] std::string explain_infeasible(const Model& model);

}  // namespace torchalgo::planner

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "planner/encode.h"

namespace torchalgo::planner {

/// Explains for an error text why the model has no choice. It names the first value that a reader
/// cannot get in any layout that it takes. If there is none, layouts or chains exclude each other.
[[nodiscard]] std::string explain_infeasible(const Model& model);

}  // namespace torchalgo::planner

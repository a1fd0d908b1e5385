// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "ir/graph.h"
#include "ir/plan.h"
#include "ir/schedule.h"

namespace torchalgo {

/// Returns the schedule of a plan. A change of layout follows the step that makes its source, and
/// all readers share it. A change that only gradients need is placed before its first reader, so
/// that the forward pass does not keep a second copy.
///
/// @param first_gradient  the first node of `graph` that computes gradients; nullopt: none does.
/// @throws Error  if the plan was made for another model, which has other names or problems, or if
///   no entry of the plan makes a value in a layout in which a node reads it.
[[nodiscard]] Schedule lower(const Graph& graph, const Plan& plan,
                             std::optional<int> first_gradient = std::nullopt);

}  // namespace torchalgo

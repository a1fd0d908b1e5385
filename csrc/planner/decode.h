// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/plan.h"
#include "pbqp/solve.h"
#include "planner/encode.h"

namespace torchalgo::planner {

/// Returns the plan of a choice: the primitive of each node, and the cheapest transforms between
/// them. Its cost is the sum of its parts. It may be below solution.cost if the choice is not
/// proven optimal.
[[nodiscard]] Plan decode(const Model& model, const Encoding& encoding,
                          const pbqp::Solution& solution);

/// Returns the keys of the costs in a choice that are only bounds.
[[nodiscard]] std::set<CostKey> bounds_in_choice(const Model& model, const Encoding& encoding,
                                                 const std::vector<int>& choice);

}  // namespace torchalgo::planner

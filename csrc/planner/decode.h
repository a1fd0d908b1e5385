// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/plan.h"
#include "pbqp/solve.h"
#include "planner/encode.h"

namespace torchalgo::planner {

/// The plan of a choice: what each node runs, and the cheapest transforms between. Its cost is the
/// sum of its parts; it may be below solution.cost where that choice is not proven optimal.
[[nodiscard]] Plan decode(const Model& model, const Encoding& encoding,
                          const pbqp::Solution& solution);

/// Keys of the costs in a choice that are only bounds.
[[nodiscard]] std::set<CostKey> bounds_in_choice(const Model& model, const Encoding& encoding,
                                                 const std::vector<int>& choice);

}  // namespace torchalgo::planner

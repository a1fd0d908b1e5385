// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/plan.h"
#include "pbqp/solve.h"
#include "planner/encode.h"

namespace torchalgo::planner {

/// Sets runner_up and regret of each node of an optimal `plan` that runs a primitive of its own.
/// The runner-up is the node's primitive (name and layouts) in the best plan in which it runs
/// another one. The regret is how much more that plan costs, by the marginals of `solution`. Nodes
/// without another choice, or whose marginals are only bounds, have none.
void add_regrets(const Model& model, const Encoding& encoding, const pbqp::Solution& solution,
                 Plan& plan);

}  // namespace torchalgo::planner

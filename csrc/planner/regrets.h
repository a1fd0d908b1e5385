// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/plan.h"
#include "pbqp/solve.h"
#include "planner/encode.h"

namespace torchalgo::planner {

/// Sets runner_up and regret of each node of an optimal `plan` that runs a primitive of its own:
/// what the best plan costs in which this node runs another one (name or layouts), read off the
/// marginals of `solution`. Nodes without another choice, or whose marginals are mere bounds, keep
/// none.
void add_regrets(const Model& model, const Encoding& encoding, const pbqp::Solution& solution,
                 Plan& plan);

}  // namespace torchalgo::planner

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/plan.h"
#include "planner/encode.h"

namespace torchalgo::planner {

/// Sets runner_up and regret of each node of an optimal `plan` that runs a primitive of its own:
/// the best plan in which this node runs another one (name or layouts) is solved anew. Nodes
/// without another choice, or not reached within `time_limit_s`, keep none.
void add_regrets(const Model& model, const Encoding& encoding, double time_limit_s, Plan& plan);

}  // namespace torchalgo::planner

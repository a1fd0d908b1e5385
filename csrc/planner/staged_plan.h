// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "planner/make_plan.h"

namespace torchalgo {

/// Makes the plan of a training step that three choices in a row give: the forward pass, then the
/// gradients of data, then the gradients of weights. Each choice is optimal for the costs of its
/// own nodes and keeps the choices before it. make_plan chooses all at once, so its plan costs at
/// most as much: the difference is what the common choice gains.
///
/// @param graph  of training_graph(). A node belongs to the gradients if a value "<output>.grad"
/// among the inputs leads to it, and to those of weights if it is a convolution's backward-filter.
/// @throws NoPlan  as make_plan.
[[nodiscard]] PlanResult make_staged_plan(const Graph& graph, const Candidates& candidates,
                                          const std::vector<Candidate>& transforms,
                                          const CostTable& costs, const PlanOptions& options = {});

}  // namespace torchalgo

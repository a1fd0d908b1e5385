// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/plan.h"

namespace torchalgo {

/// One call of a plan: an anchor with the nodes that it absorbs.
struct PlannedCall {
  std::string name;         // of the anchor
  std::vector<int> covers;  // nodes, the anchor first; the call replaces the last one
  Problem problem;          // with the epilogue
  Primitive primitive;
  std::vector<int> src;         // values, in input_layout(problem, primitive)
  std::optional<int> residual;  // value, in result_layout(problem, primitive)
  int dst = -1;                 // value
};

/// A plan in terms of one graph's indices.
struct FittedPlan {
  std::vector<std::optional<PlannedCall>> call_at;     // by the last node it covers
  std::vector<bool> is_planned;                        // by node
  std::vector<std::vector<PlanTransform>> transforms;  // by value, in order
  std::string structure_hash;  // of the plan, or of `graph` if the plan was matched by names
};

/// Matches a plan with the graph that it was made for. If an older version of torchalgo did not
/// plan an operation yet, the plan has no node for it, and PyTorch runs it. A plan of an older
/// version may have another hash because the importer makes another graph of the model now. It is
/// then matched by the names and problems of its nodes alone.
/// @throws Error  if the plan was made for another graph, with the first difference; if it is
///   inconsistent; if its structure hash has a newer version.
[[nodiscard]] FittedPlan fit_plan(const Graph& graph, const Plan& plan);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/plan.h"

namespace torchalgo {

/// One call of the rewritten graph: an anchor with the nodes it absorbs.
struct PlannedCall {
  std::string name;  // of the anchor
  std::vector<int>
      covers;       // nodes; the first is the anchor, the call stands where the last one was
  Problem problem;  // with the epilogue
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
  std::string structure_hash;  // the plan's, or, if it was matched by names, the present one
};

/// Matches a plan with the graph it was made for. The version of torchalgo that made it may not
/// have known an operation that is planned today: the plan has no node for it, and PyTorch runs it.
/// A plan of an older version is matched by the names and problems of its nodes alone if the hash
/// of that version differs: the importer makes another graph of the model now.
/// @throws Error  if it was made for another graph, with the first difference; if it is
///   inconsistent; if its structure hash has a newer version.
[[nodiscard]] FittedPlan fit_plan(const Graph& graph, const Plan& plan);

}  // namespace torchalgo

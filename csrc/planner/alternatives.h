// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <set>
#include <vector>

#include "ir/cost_table.h"
#include "planner/resource_use.h"
#include "planner/value_flow.h"

namespace torchalgo::planner {

struct PricedCandidate {
  const Candidate* candidate = nullptr;
  Cost cost;
  ResourceUse use = {};  // of the limited resources
};

using PricedLists = std::vector<std::vector<PricedCandidate>>;

/// Looks up every candidate's cost; the keys that `costs` lacks are added to `missing`.
[[nodiscard]] PricedLists price_candidates(const CandidateLists& candidates, const CostTable& costs,
                                           std::set<CostKey>& missing);

/// What one node may do. Either it anchors a chain (position 0), or the anchor's candidate computes
/// it too. The rest of the graph sees only these fields, so candidates that agree in them are one
/// alternative, unless a dearer one takes less of a limited resource: then that is one more. A
/// candidate that is named in a pair of the cost table is an alternative of its own.
struct Alternative {
  std::vector<int> covers;  // the chain that is computed at once, the node itself at `position`
  int position = 0;
  ChainLayouts layouts;  // src, later: meaningless where absorbed, only the anchor reads in them
  /// Cheapest first, ties by name; none takes less of a resource than the first. Empty: absorbed.
  std::vector<PricedCandidate> options;
};

[[nodiscard]] inline bool is_absorbed(const Alternative& alternative) {
  return alternative.position > 0;
}

/// Whether the node's result is written; else the next node of the chain takes it in registers.
[[nodiscard]] inline bool writes_result(const Alternative& alternative) {
  return alternative.position + 1 == static_cast<int>(alternative.covers.size());
}

/// Whether `next` is the continuation of `alternative` in one chain.
[[nodiscard]] inline bool continues(const Alternative& alternative, const Alternative& next) {
  return next.position == alternative.position + 1 && next.layouts.dst == alternative.layouts.dst &&
         next.covers == alternative.covers;
}

/// Per node of a graph, what it may run that some pair of the cost table names.
using PairedRuns = std::vector<std::set<CostKey>>;
[[nodiscard]] PairedRuns paired_runs(const Graph& graph, const CostTable& costs);

/// The alternatives of each node (opaque: none), in an order that depends on names and costs only.
[[nodiscard]] std::vector<std::vector<Alternative>> list_alternatives(const Graph& graph,
                                                                      const PricedLists& priced,
                                                                      const PairedRuns& paired);

}  // namespace torchalgo::planner

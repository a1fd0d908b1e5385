// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <set>
#include <vector>

#include "ir/cost_table.h"
#include "planner/resource_use.h"
#include "planner/value_flow.h"

namespace torchalgo::planner {

/// A candidate with its cost from the table.
struct PricedCandidate {
  const Candidate* candidate = nullptr;
  Cost cost;
  ResourceUse use = {};  // of the limited resources
};

using PricedLists = std::vector<std::vector<PricedCandidate>>;

/// Looks up the cost of every candidate. Adds the keys that `costs` lacks to `missing`.
[[nodiscard]] PricedLists price_candidates(const CandidateLists& candidates, const CostTable& costs,
                                           std::set<CostKey>& missing);

/// One alternative of a node: it anchors a chain (position 0), or the anchor's candidate computes
/// it too. The rest of the graph depends on these fields only, so that candidates which agree in
/// them are one alternative. The exception is a dearer candidate that uses less of a limited
/// resource: it is an alternative of its own.
struct Alternative {
  std::vector<int> covers;  // the chain that is computed at once, the node itself at `position`
  int position = 0;
  ChainLayouts layouts;  // src has no meaning if absorbed: only the anchor reads
  /// Cheapest first, ties by name; none uses less of a resource than the first. Empty if absorbed.
  std::vector<PricedCandidate> options;
};

[[nodiscard]] inline bool is_absorbed(const Alternative& alternative) {
  return alternative.position > 0;
}

/// Returns true if the node's result is written to memory. If not, the next node of the chain takes
/// it from registers.
[[nodiscard]] inline bool writes_result(const Alternative& alternative) {
  return alternative.position + 1 == static_cast<int>(alternative.covers.size());
}

/// Returns true if `next` continues the chain of `alternative`.
[[nodiscard]] inline bool continues(const Alternative& alternative, const Alternative& next) {
  return next.position == alternative.position + 1 && next.layouts.dst == alternative.layouts.dst &&
         next.covers == alternative.covers;
}

/// Returns the alternatives of each node, in an order that depends on names and costs only. Opaque
/// nodes have none.
[[nodiscard]] std::vector<std::vector<Alternative>> list_alternatives(const Graph& graph,
                                                                      const PricedLists& priced);

}  // namespace torchalgo::planner

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "planner/alternatives.h"

namespace torchalgo::planner {

/// An alternative of a node of the graph.
struct AlternativeAt {
  int node = -1;
  int alternative = 0;
};

/// A pair of the cost table whose choices are both among the alternatives.
struct PairTerm {
  AlternativeAt producer;  // node -1: any choice of the producer
  AlternativeAt reader;
  Ticks cost = 0;
  const PairKey* key = nullptr;  // of the cost table
};

/// Returns the pairs of `costs` that a plan may have, in the order of the table. Pairs with a node
/// or a run that the alternatives lack are left out. `alternatives` are those of
/// list_alternatives() for the same table.
/// @throws Error  if a node is paired with itself.
[[nodiscard]] std::vector<PairTerm> find_pairs(
    const Graph& graph, const std::vector<std::vector<Alternative>>& alternatives,
    const CostTable& costs);

}  // namespace torchalgo::planner

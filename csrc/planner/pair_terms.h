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
  AlternativeAt producer;  // node -1: whatever runs before
  AlternativeAt reader;
  Ticks cost = 0;
  const PairKey* key = nullptr;  // of the cost table
};

/// The pairs of `costs` that a plan may have, in the order of the table; pairs of what the graph
/// lacks or may not run are left out. `alternatives` are list_alternatives', for the same table.
/// @throws Error  a pair of a node with itself.
[[nodiscard]] std::vector<PairTerm> find_pairs(
    const Graph& graph, const std::vector<std::vector<Alternative>>& alternatives,
    const CostTable& costs);

}  // namespace torchalgo::planner

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "pbqp/problem.h"
#include "planner/alternatives.h"
#include "planner/transforms.h"

namespace torchalgo::planner {

/// All data that the choice depends on.
struct Model {
  const Graph& graph;
  std::vector<ValueFlow> flow;                         // per value
  std::vector<std::vector<Alternative>> alternatives;  // per node; opaque: empty
  TransformCosts transforms;
};

/// A model as a PBQP.
struct Encoding {
  pbqp::Problem problem;
  std::vector<int> variable;  // per node of the graph, -1: opaque; alternatives in the same order
};

/// Encodes the model as a PBQP with the same optimum. The cost of a choice of alternatives is the
/// sum of two parts:
/// - the costs of its candidates;
/// - for each value, the cheapest tree of transforms to all layouts in which it is read.
///
/// A value with one reader is an edge. A value with several readers has a set variable U, the set
/// of layouts in which it must exist. The node that writes the value pays for the tree to U, and
/// each reader's layout must be in U. Dense blocks have long nested lists of readers. To keep these
/// narrow, a list is ordered so that the most shared readers come last. Each suffix of the list has
/// a set variable. Its set holds the layout of the suffix's first reader and includes the set of
/// the rest. Values whose lists have the same end share its variables. This is exact, because a
/// tree to fewer layouts never costs more. Source: the PBQP model is Anderson & Gregg 2018, CGO,
/// pp. 340-351, doi:10.1145/3168805, where each reader pays its own transform; the shared set
/// variables are ours.
[[nodiscard]] Encoding encode(const Model& model);

}  // namespace torchalgo::planner

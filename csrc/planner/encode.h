// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "pbqp/problem.h"
#include "planner/alternatives.h"
#include "planner/pair_terms.h"
#include "planner/transforms.h"

namespace torchalgo::planner {

/// All that the choice depends on.
struct Model {
  const Graph& graph;
  std::vector<ValueFlow> flow;                         // per value
  std::vector<std::vector<Alternative>> alternatives;  // per node; opaque: empty
  TransformCosts transforms;
  std::vector<PairTerm> pairs = {};
};

struct Encoding {
  pbqp::Problem problem;
  std::vector<int> variable;  // per node of the graph, -1: opaque; alternatives in the same order
};

/// The model as a PBQP whose optimum is the model's: a choice of alternatives costs the sum of its
/// candidates and, per value, the cheapest tree of transforms to all layouts in which it is read,
/// and what the pairs among them cost.
///
/// A value with one reader is an edge. One with several has a set variable U, the layouts in which
/// it must exist: its writer pays the tree to U, and each reader's layout must be in U. To keep
/// nested lists of readers narrow (dense blocks), U stands for a suffix of a list in which the most
/// shared readers come last, holds the layout of the first of them, and includes the U of the rest;
/// values whose lists end alike share it. Exact, because a tree to fewer layouts is never dearer.
/// Source: the PBQP model is Anderson & Gregg 2018, CGO, pp. 340-351, doi:10.1145/3168805, where
/// each reader pays its own transform; the shared set variables are ours.
///
/// The pairs of two nodes are an edge between them. What a pair takes off is taken off the reader's
/// node and added to all other pairs with it, so that every cost stays >= 0.
/// @throws Error  if pairs take more off a choice than it costs.
[[nodiscard]] Encoding encode(const Model& model);

}  // namespace torchalgo::planner

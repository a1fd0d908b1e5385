// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/instance.h"
#include "pbqp/proof.h"

namespace torchalgo::pbqp {

/// A node taken out by a reduction: its best value follows from those of its neighbours.
struct Eliminated {
  struct Neighbour {
    int node = 0;
    std::vector<Cost> rows;  // rows[y * size(node) + b], y of the eliminated node
  };
  int node = 0;
  std::vector<Cost> costs;
  std::vector<Neighbour> neighbours;
};

/// How often each rule applied.
struct RuleCounts {
  int r0 = 0, r1 = 0, r2 = 0, folded = 0, dominated = 0, tables = 0;
};

/// What is left of an instance, and how a choice for the rest becomes one for all of it.
struct Reduction {
  bool infeasible = false;           // proven; then only `proof` is set
  Instance core;                     // every node has >= 2 values and >= 3 neighbours
  std::vector<int> core_nodes;       // the node that core node i was
  Values core_values;                // the value (before the reduction) that core value a was
  std::vector<Eliminated> sequence;  // in order of elimination
  Values values;                     // the value of the source behind each value in `sequence`
  ProofSteps proof;                  // what was done, in nodes of the instance, values as `values`
  RuleCounts counts;
};

/// Applies, until none fits: R0, R1, R2 (nodes of degree 0, 1, 2 go into their neighbours' costs),
/// folding of nodes with one value, removal of values that no neighbour supports, of dominated
/// values and of tables that are sums of node costs. Equivalence: the optimum's cost is kept. At
/// the deadline the rest is left as it is, and the core holds nodes of fewer neighbours or values.
/// Source: Hames & Scholz 2006, JMLC, LNCS 4228, pp. 346-361 (R0-R2); Goldstein 1994, Biophysical
/// Journal 66, pp. 1335-1340 (dominance).
[[nodiscard]] Reduction reduce(Restricted source, const Deadline& deadline = Deadline::never());

/// The choice for the source of `reduction`: positions in it, the core's given as `core_choice`.
[[nodiscard]] std::vector<int> lift(const Reduction& reduction,
                                    const std::vector<int>& core_choice);

}  // namespace torchalgo::pbqp

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/instance.h"
#include "pbqp/proof.h"

namespace torchalgo::pbqp {

/// A node that a reduction removed. Its best value follows from the values of its neighbours.
struct Eliminated {
  struct Neighbour {
    int node = 0;
    std::vector<Cost> rows;  // rows[y * size(node) + b], y of the eliminated node
  };
  int node = 0;
  std::vector<Cost> costs;
  std::vector<Neighbour> neighbours;
};

/// The number of applications of each rule.
struct RuleCounts {
  int r0 = 0, r1 = 0, r2 = 0, folded = 0, dominated = 0, tables = 0;
};

/// The rest of an instance after reductions, and the data to extend a choice for the rest to the
/// whole instance.
struct Reduction {
  bool infeasible = false;           // proven; only `proof` is set in this case
  Instance core;                     // every node has >= 2 values and >= 3 neighbours
  std::vector<int> core_nodes;       // the original node of core node i
  Values core_values;                // the original value of core value a
  std::vector<Eliminated> sequence;  // in order of elimination
  Values values;                     // the value of the source behind each value in `sequence`
  ProofSteps proof;  // the steps taken, in nodes of the instance, values as `values`
  RuleCounts counts;
};

/// Applies these rules until none applies:
/// - R0, R1, R2: nodes of degree 0, 1, 2 are merged into their neighbours' costs.
/// - Nodes with one value are folded.
/// - Values that no neighbour supports, and dominated values, are removed.
/// - Tables that are sums of node costs are removed.
///
/// The optimum's cost stays the same. At the deadline the rest is left unreduced. The core may then
/// hold nodes with fewer neighbours or values.
/// Source: Hames & Scholz 2006, JMLC, LNCS 4228, pp. 346-361 (R0-R2); Goldstein 1994, Biophysical
/// Journal 66, pp. 1335-1340 (dominance).
[[nodiscard]] Reduction reduce(Restricted source, const Deadline& deadline = Deadline::never());

/// Returns the choice for the source of `reduction`, as positions in the source. `core_choice` is
/// the choice for the core.
[[nodiscard]] std::vector<int> lift(const Reduction& reduction,
                                    const std::vector<int>& core_choice);

}  // namespace torchalgo::pbqp

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pbqp/problem.h"

namespace torchalgo::pbqp {

enum class Status : std::uint8_t {
  kOptimal,     // cost == lower_bound
  kFeasible,    // a choice with a gap to its proven bound
  kInfeasible,  // proven: no choice exists
  kUnknown,     // no choice was found within the limits
};

struct SolveOptions {
  /// Cells that one elimination may walk through: over its nodes, the node's values times those of
  /// its neighbours at its turn. R0-R2 need no such tables and are always applied.
  std::int64_t table_cap = 30'000'000;
  double time_limit_s = 10.0;  // for the bound and branching beyond exact elimination
};

struct Solution {
  Status status = Status::kUnknown;
  std::vector<int> choice;  // one alternative per node; empty unless kOptimal or kFeasible
  Cost cost = 0;            // == evaluate(problem, choice)
  Cost lower_bound = 0;     // no choice is cheaper
  std::string method;       // "R0-R2 reductions", "elimination (width 3)", "bound and pruning",
                            // "branch and bound (12 nodes), elimination (width 5)"
};

/// Picks one alternative per node so that the sum of node and edge costs is least; `problem` is not
/// changed. Deterministic for a given Problem unless the time limit ends the search; ties go to the
/// lowest index where the method allows.
/// @throws std::invalid_argument  as check_problem.
/// Source: Hames & Scholz 2006, JMLC, LNCS 4228, pp. 346-361 (R0-R2); Dechter 1999, Artificial
/// Intelligence 113, pp. 41-85 (bucket elimination); Kolmogorov 2006, IEEE TPAMI 28(10),
/// pp. 1568-1583 (the bound beyond them).
[[nodiscard]] Solution solve(const Problem& problem, const SolveOptions& options = {});

}  // namespace torchalgo::pbqp

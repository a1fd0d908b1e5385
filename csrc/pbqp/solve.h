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
  kInfeasible,  // it is proven that no choice exists
  kUnknown,     // no choice was found within the limits
};

struct SolveOptions {
  /// The most cells that one elimination may read. A node has as many cells as its values times the
  /// classes of its neighbours' values when it is eliminated. If the bounds leave a gap, 20 times
  /// as many are allowed once. R0-R2 need no such tables and are always applied.
  std::int64_t table_cap = 30'000'000;
  /// The time limit for everything. At the limit, the step that is running is cancelled, and the
  /// result has the best bound proven so far. Every cost of the problem is read once even without
  /// time.
  double time_limit_s = 10.0;
  bool with_marginals = false;         // about three times the work of an elimination
  bool with_transcript = false;        // a line per step, with the bounds over time
  std::int64_t proof_cap = 8'000'000;  // most numbers in the certificate, else none
};

/// A proof of lower_bound in exact integers. docs/pbqp.md describes the lines.
struct Certificate {
  enum class Kind : std::uint8_t {
    kNone,         // there was no room within proof_cap
    kElimination,  // an order of elimination, and values that another one dominates
    kMessages,     // also costs moved between tables and nodes, so that the minima add up to it
    kBranches,     // also cases, each proven by one of these
  };
  Kind kind = Kind::kNone;
  std::string proof;
};

/// The least cost of the problem if a node takes a given alternative.
struct Marginal {
  Cost cost = 0;          // kForbidden if no choice has the alternative
  bool is_exact = false;  // false: `cost` is a lower bound
};

/// An entry of the transcript: the best bound and cost known at a time. They never become worse.
struct Event {
  double seconds = 0;  // since the start
  std::string text;
  Cost lower_bound = 0;
  Cost cost = kForbidden;  // kForbidden if there is no choice yet
};

struct Solution {
  Status status = Status::kUnknown;
  std::vector<int> choice;  // one alternative per node; empty unless kOptimal or kFeasible
  Cost cost = 0;            // == evaluate(problem, choice)
  Cost lower_bound = 0;     // no choice is cheaper; kForbidden if infeasible
  std::string method;       // "R0-R2 reductions", "elimination (width 3)", "bound and pruning",
                            // "branch and bound (12 nodes), elimination (width 5)",
                            // "bound at once" where there was no time
  Certificate certificate;
  std::vector<std::vector<Marginal>> marginals;  // per node and alternative, if requested
  std::vector<bool> is_fixed;                    // per node, if marginals were requested: every
                                                 // other alternative is proven to cost more
  std::vector<Event> transcript;                 // if requested
};

/// Chooses one alternative per node so that the sum of node and edge costs is least. `problem` is
/// not changed. The result is deterministic for a given Problem unless the time limit ends the
/// search. Ties go to the lowest index if the method allows it.
/// @throws std::invalid_argument  as check_problem.
/// Source: Hames & Scholz 2006, JMLC, LNCS 4228, pp. 346-361 (R0-R2); Dechter 1999, Artificial
/// Intelligence 113, pp. 41-85 (bucket elimination); Kolmogorov 2006, IEEE TPAMI 28(10),
/// pp. 1568-1583 (the bound beyond them).
[[nodiscard]] Solution solve(const Problem& problem, const SolveOptions& options = {});

}  // namespace torchalgo::pbqp

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
  /// Cells that one elimination may walk through: over its nodes, the node's values times the
  /// classes of its neighbours' at its turn; 20 times as many once, where bounds leave a gap. R0-R2
  /// need no such tables and are always applied.
  std::int64_t table_cap = 30'000'000;
  /// Of everything; what is under way is given up, and the bound is the best proven by then. One
  /// look at every cost of the problem is taken even without time.
  double time_limit_s = 10.0;
  bool with_marginals = false;         // about three times the work of an elimination
  bool with_transcript = false;        // a line per step, with the bounds over time
  std::int64_t proof_cap = 8'000'000;  // numbers in the certificate; above it there is none
};

/// A proof of lower_bound in exact integers. docs/pbqp.md describes the lines.
struct Certificate {
  enum class Kind : std::uint8_t {
    kNone,         // there was no room within proof_cap
    kElimination,  // an order of elimination, and values that another one makes superfluous
    kMessages,     // also costs to move between tables and nodes, whose minima then add up to it
    kBranches,     // also cases, each proven by one of these
  };
  Kind kind = Kind::kNone;
  std::string proof;
};

/// What the problem costs at best if a node takes an alternative.
struct Marginal {
  Cost cost = 0;          // kForbidden: no choice has it
  bool is_exact = false;  // else a lower bound
};

/// What was known when: the best bound and choice never become worse.
struct Event {
  double seconds = 0;  // since the start
  std::string text;
  Cost lower_bound = 0;
  Cost cost = kForbidden;  // kForbidden: no choice yet
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
  std::vector<std::vector<Marginal>> marginals;  // per node and alternative, if asked for
  std::vector<bool> is_fixed;                    // per node, if marginals were asked for: every
                                                 // other alternative is proven to cost more
  std::vector<Event> transcript;                 // if asked for
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

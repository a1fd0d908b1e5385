// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/instance.h"
#include "pbqp/proof.h"

namespace torchalgo::pbqp {

struct SearchResult {
  Cost cost = kForbidden;       // of `choice`
  std::vector<int> choice;      // empty if none was found
  Cost lower_bound = 0;         // no choice is cheaper; kForbidden: proven infeasible
  int branches = 0;             // subproblems evaluated
  int width = 0;                // of the widest elimination, 0 if there was none
  Proof proof;                  // of lower_bound, in nodes and values of the instance
  std::int64_t proof_room = 0;  // room left; below 0 if it was not enough and `proof` is empty
};

struct SearchLimits {
  std::int64_t table_cap = 0;
  std::int64_t proof_room = 0;  // numbers that the proof may take
  const Deadline& deadline;
  /// Called with each better bound and choice. The cost is kForbidden until there is a choice.
  std::function<void(Cost lower_bound, Cost cost)> report;
};

/// Branch and bound that takes the subproblem with the lowest bound first. It runs in steps, so
/// that several searches can share the time. Each subproblem is reduced. If its tables fit
/// `table_cap`, it is solved by elimination. Otherwise it is bounded, and the values that cannot
/// improve on the best choice are removed. The first step evaluates the first subproblem in this
/// way. Before any branching, the next steps solve it with only the most promising values, and try
/// to eliminate the rest with tables kWideTables times as large.
/// Source: the loop of bound, pruning and renewed exact solution after Haller, Swoboda &
/// Savchynskyy 2018, AAAI ("Exact MAP-inference by confining combinatorial search with LP
/// relaxation").
class Search {
 public:
  static constexpr std::int64_t kWideTables = 20;

  /// `instance` must outlive the search.
  Search(const Instance& instance, SearchLimits limits);
  Search(Search&&) noexcept;
  ~Search();

  /// Returns true if no better choice exists than the one found, or none at all if none was found.
  [[nodiscard]] bool is_done() const;

  /// Returns an upper bound of the choice's cost above the optimum, or kForbidden if there is no
  /// choice.
  [[nodiscard]] Cost gap() const;

  /// Makes one step. Call it until is_done(). The first step always leads to a bound, even without
  /// time.
  void step();

  /// Returns the best solution found. Call it once, after the search has ended.
  [[nodiscard]] SearchResult take();

 private:
  class Steps;
  std::unique_ptr<Steps> steps_;
};

}  // namespace torchalgo::pbqp

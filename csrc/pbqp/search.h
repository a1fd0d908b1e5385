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
  int branches = 0;             // subproblems looked at
  int width = 0;                // of the widest elimination, 0 if there was none
  Proof proof;                  // of lower_bound, in nodes and values of the instance
  std::int64_t proof_room = 0;  // what it left; below 0: there was not enough, and `proof` is empty
};

struct SearchLimits {
  std::int64_t table_cap = 0;
  std::int64_t proof_room = 0;  // numbers that the proof may take
  const Deadline& deadline;
  /// Told of each better bound and choice; costs are kForbidden until there is a choice.
  std::function<void(Cost lower_bound, Cost cost)> report;
};

/// Branch and bound, lowest bound first, in steps, so that several searches can share the time.
/// Each subproblem is reduced, solved by elimination if its tables fit `table_cap`, else bounded
/// and rid of the values that cannot beat the best choice. The first step does this to the first
/// subproblem; the next ones, before any branching, solve it with the most promising values only,
/// and try to eliminate what is left with tables kWideTables times as large.
/// Source: the loop of bound, pruning and renewed exact solution after Haller, Swoboda &
/// Savchynskyy 2018, AAAI ("Exact MAP-inference by confining combinatorial search with LP
/// relaxation").
class Search {
 public:
  static constexpr std::int64_t kWideTables = 20;

  /// `instance` must outlive it.
  Search(const Instance& instance, SearchLimits limits);
  Search(Search&&) noexcept;
  ~Search();

  /// Nothing better than the choice, if there is one, is left.
  [[nodiscard]] bool is_done() const;

  /// What the choice may lie above the optimum; kForbidden without a choice.
  [[nodiscard]] Cost gap() const;

  /// Until it is done. The first one always leads to a bound, even without time.
  void step();

  /// At last.
  [[nodiscard]] SearchResult take();

 private:
  class Steps;
  std::unique_ptr<Steps> steps_;
};

}  // namespace torchalgo::pbqp

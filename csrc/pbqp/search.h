// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/instance.h"

namespace torchalgo::pbqp {

struct SearchResult {
  Cost cost = kForbidden;   // of `choice`
  std::vector<int> choice;  // empty if none was found
  Cost lower_bound = 0;     // no choice is cheaper; kForbidden: proven infeasible
  int branches = 0;         // subproblems looked at
  int width = 0;            // of the widest elimination, 0 if there was none
};

/// Branch and bound, lowest bound first. Each subproblem is reduced, solved by elimination if its
/// tables fit `table_cap`, else bounded and rid of the values that cannot beat the best choice.
/// Source: the loop of bound, pruning and renewed exact solution after Haller, Swoboda &
/// Savchynskyy 2018, AAAI ("Exact MAP-inference by confining combinatorial search with LP
/// relaxation").
[[nodiscard]] SearchResult search(const Instance& instance, std::int64_t table_cap,
                                  const Deadline& deadline);

}  // namespace torchalgo::pbqp

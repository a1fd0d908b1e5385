// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "pbqp/solve.h"

namespace torchalgo::planner {

/// Something of which there is only so much, beside the cost: bytes of packed weights, an error.
struct Budget {
  std::vector<std::vector<std::int64_t>> use;  // >= 0, per node and alternative as node_costs
  std::int64_t limit = 0;                      // of the sum
};

struct LimitedSolution {
  pbqp::Solution solution;  // optimal, feasible, ... within the limit; no certificate
  std::int64_t use = 0;     // of its choice
  /// If even the least use exceeds the limit: a choice that has it; empty if there is no choice.
  std::vector<int> leanest;
};

/// The cheapest choice whose use keeps to the limit. The Lagrangian of cost and use is a problem
/// without limit; its best multiplier gives a bound, its marginals remove values, and what is left
/// is eliminated with tables of (cost, use) pairs, or split where these grow too large. Always with
/// a proven bound, also when the time is up.
/// @param pair_cap  of the pairs in one elimination; 0: only splitting.
/// @throws Error  if the sum of all uses or costs leaves no room in 62 bits.
/// Source: Handler & Zang 1980, Networks 10, pp. 293-309 (the multiplier, then closing the gap).
[[nodiscard]] LimitedSolution solve_limited(const pbqp::Problem& problem, const Budget& budget,
                                            double time_limit_s, std::int64_t pair_cap = 300'000);

}  // namespace torchalgo::planner

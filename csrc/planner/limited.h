// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "pbqp/solve.h"
#include "planner/uses.h"

namespace torchalgo::planner {

/// That of which there is only so much, beside the cost: bytes of packed weights, an error.
struct Budget {
  std::vector<std::vector<Uses>> use;  // >= 0, per node and alternative as node_costs
  Uses limit = {};                     // of the sums
};

struct LimitedSolution {
  pbqp::Solution solution;  // optimal, feasible, ... within the limit; no certificate
  Uses use = {};            // of its choice
  /// If even the least use of one resource exceeds its limit: a choice that has it, and which one.
  /// Empty if there is no choice at all, or if each limit alone can be kept.
  std::vector<int> leanest;
  std::size_t scarce = 0;
};

/// The cheapest choice whose uses keep to the limits. The Lagrangian of cost and uses is a problem
/// without limits; its best multipliers give a bound, its marginals remove values, and what is left
/// is eliminated with tables of (cost, uses), or split where these grow too large. Always with a
/// proven bound, also when the time is up.
/// @param pair_cap  of the entries in one elimination; 0: only splitting.
/// @throws Error  if the sum of all uses or costs leaves no room in 62 bits.
/// Source: Handler & Zang 1980, Networks 10, pp. 293-309 (the multiplier, then closing the gap).
[[nodiscard]] LimitedSolution solve_limited(const pbqp::Problem& problem, const Budget& budget,
                                            double time_limit_s, std::int64_t pair_cap = 300'000);

}  // namespace torchalgo::planner

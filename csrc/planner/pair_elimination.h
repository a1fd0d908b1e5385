// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/order.h"

namespace torchalgo::planner {

/// What a choice must keep to for it to matter.
struct PairLimits {
  std::int64_t use = 0;     // of the sum at most
  pbqp::Cost per_cost = 1;  // weights of cost and use in the Lagrangian
  pbqp::Cost per_use = 0;
  pbqp::Cost excess = 0;      // of the Lagrangian over its least value, at most
  std::int64_t pair_cap = 0;  // pairs in all tables
};

/// The cheapest choice within `limits`, by bucket elimination whose tables hold, per cell, the
/// (cost, use) pairs that no other pair of the cell undercuts in both. Pairs whose Lagrangian
/// exceeds the cell's least by more than `limits.excess` belong to no choice that matters. An empty
/// choice: there is none. Nothing: the cap or the deadline struck.
[[nodiscard]] std::optional<std::vector<int>> eliminate_pairs(
    const pbqp::Instance& instance, const std::vector<std::vector<std::int64_t>>& use,
    const pbqp::EliminationOrder& order, const PairLimits& limits, const pbqp::Deadline& deadline);

}  // namespace torchalgo::planner

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/order.h"
#include "planner/uses.h"

namespace torchalgo::planner {

/// What a choice must keep to for it to matter.
struct PairLimits {
  Uses use = {};            // of the sums at most
  pbqp::Cost per_cost = 1;  // weights of cost and uses in the Lagrangian
  Uses per_use = {};
  pbqp::Cost excess = 0;      // of the Lagrangian over its least value, at most
  std::int64_t pair_cap = 0;  // pairs in all tables
};

/// The cheapest choice within `limits`, by bucket elimination whose tables hold, per cell, the
/// (cost, uses) pairs that no other pair of the cell undercuts in all. Pairs whose Lagrangian
/// exceeds the cell's least by more than `limits.excess` belong to no choice that matters. An empty
/// choice: there is none. Nothing: the cap or the deadline struck.
[[nodiscard]] std::optional<std::vector<int>> eliminate_pairs(
    const pbqp::Instance& instance, const std::vector<std::vector<Uses>>& use,
    const pbqp::EliminationOrder& order, const PairLimits& limits, const pbqp::Deadline& deadline);

}  // namespace torchalgo::planner

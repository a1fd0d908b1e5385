// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/order.h"
#include "planner/resource_use.h"

namespace torchalgo::planner {

/// Bounds beyond which a label belongs to no choice of interest.
struct LabelLimits {
  ResourceUse use = {};            // limits of the sums
  pbqp::Cost cost_multiplier = 1;  // of the Lagrangian
  ResourceUse use_multipliers = {};
  pbqp::Cost max_gap = 0;      // between a choice's Lagrangian and the least one
  std::int64_t label_cap = 0;  // labels in all tables
};

/// Finds the cheapest choice that keeps the limits of `use`, by bucket elimination with labels.
///
/// Plain bucket elimination removes one node after the other. It leaves a table with the least cost
/// for each combination of values of the node's neighbours. With limits on sums the least cost is
/// not enough: a choice with more cost and less use may be the only one that fits. So a cell of a
/// table holds labels (cost, use), one for each choice that no other choice of the cell dominates.
/// One label dominates another if neither its cost nor any use is larger. A label is also dropped
/// if its use exceeds a limit, or if its Lagrangian exceeds the least one of its cell by more than
/// `limits.max_gap`. These are the labels of the shortest path problem with resource constraints
/// (Irnich & Desaulniers 2004, Les Cahiers du GERAD G-2004-11).
///
/// @return  one value per node; empty if no choice keeps the limits; nullopt if the tables exceed
/// limits.label_cap or the deadline expired.
[[nodiscard]] std::optional<std::vector<int>> eliminate_with_labels(
    const pbqp::Instance& instance, const std::vector<std::vector<ResourceUse>>& use,
    const pbqp::EliminationOrder& order, const LabelLimits& limits, const pbqp::Deadline& deadline);

}  // namespace torchalgo::planner

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "planner/alternatives.h"
#include "planner/layout_set.h"

namespace torchalgo::planner {

/// One measured change of layout.
struct Hop {
  Layout from = Layout::kNchw;
  Layout to = Layout::kNchw;
  bool operator==(const Hop&) const = default;
};

/// The transforms of one shape, and what it costs to have a value in several layouts.
struct LayoutChanges {
  /// [from][to]: the cheapest primitive, ties by name; candidate is null if there is none.
  std::array<std::array<PricedCandidate, kLayoutCount>, kLayoutCount> direct = {};
  /// [root][set]: the least sum of hops that lead from `root` to all layouts of `set`;
  /// pbqp::kForbidden if there are none. Each layout on the way may feed any number of others. If
  /// `root` has the model's type, no layout of this type is made from one of a coarser type.
  std::array<std::array<Ticks, kLayoutSetCount>, kLayoutCount> tree_cost = {};
};

/// Fills `tree_cost` from `direct`.
void compute_tree_costs(LayoutChanges& changes);

/// Returns the hops of tree_cost[root][wanted], each after the hop that makes its source. Of
/// equally cheap trees it is one with the fewest hops.
[[nodiscard]] std::vector<Hop> cheapest_tree(const LayoutChanges& changes, Layout root,
                                             LayoutSet wanted);

/// The transforms at each value.
struct TransformCosts {
  std::vector<LayoutChanges> shapes;
  std::vector<int> shape_of_value;  // index of `shapes`

  [[nodiscard]] const LayoutChanges& at(int value) const { return shapes[shape_of_value[value]]; }
};

/// Looks up every transform that some value may need, except those that need more workspace than
/// `workspace_limit_bytes`. Adds the keys that `costs` lacks to `missing`.
/// @param at_value  per value the layouts that may occur. A value with one layout needs no
/// transform.
/// @param intermediate_layouts  layouts that a value may take between two that occur.
[[nodiscard]] TransformCosts price_transforms(
    const std::vector<ValueFlow>& flow, const std::vector<LayoutSet>& at_value,
    LayoutSet intermediate_layouts, const std::vector<Candidate>& transforms,
    const CostTable& costs, std::set<CostKey>& missing,
    std::int64_t workspace_limit_bytes = std::numeric_limits<std::int64_t>::max());

}  // namespace torchalgo::planner

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
  /// [from][to]: the cheapest primitive, ties by name; none: no candidate.
  std::array<std::array<PricedCandidate, kLayoutCount>, kLayoutCount> direct = {};
  /// [root][set]: least sum of hops that, from `root`, make all of `set`; pbqp::kForbidden if
  /// impossible. A layout made on the way may feed any number of others.
  std::array<std::array<Ticks, kLayoutSetCount>, kLayoutCount> tree_cost = {};
};

/// Fills `tree_cost` from `direct`.
void compute_tree_costs(LayoutChanges& changes);

/// The hops behind tree_cost[root][wanted], each after the one that makes its source; the fewest
/// among equally cheap ones.
[[nodiscard]] std::vector<Hop> cheapest_tree(const LayoutChanges& changes, Layout root,
                                             LayoutSet wanted);

/// The transforms at each value.
struct TransformCosts {
  std::vector<LayoutChanges> shapes;
  std::vector<int> shape_of_value;  // index of `shapes`

  [[nodiscard]] const LayoutChanges& at(int value) const { return shapes[shape_of_value[value]]; }
};

/// Looks up every transform that some value may need; the keys that `costs` lacks are added to
/// `missing`.
/// @param at_value  per value the layouts that may occur; where only one may, nothing is looked up.
/// Transforms that need more than `workspace_limit_bytes` are left out.
/// @param intermediate_layouts  layouts that a value may take between two that occur.
[[nodiscard]] TransformCosts price_transforms(
    const std::vector<ValueFlow>& flow, const std::vector<LayoutSet>& at_value,
    LayoutSet intermediate_layouts, const std::vector<Candidate>& transforms,
    const CostTable& costs, std::set<CostKey>& missing,
    std::int64_t workspace_limit_bytes = std::numeric_limits<std::int64_t>::max());

}  // namespace torchalgo::planner

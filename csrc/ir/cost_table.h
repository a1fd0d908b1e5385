// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "ir/primitive.h"
#include "ir/problem.h"
#include "ir/view.h"

namespace torchalgo {

/// 1/1024 ns: costs are integers in the solver, so that sums and ties are exact.
using Ticks = std::int64_t;
inline constexpr double kTicksPerUs = 1024.0 * 1000.0;

/// kBound: a lower bound, kModel: a guess, kConstruction: a view, 0.
enum class CostSource : std::uint8_t { kMeasured, kBound, kModel, kConstruction };

struct Cost {
  Ticks ticks = 0;
  CostSource source = CostSource::kMeasured;
  bool operator==(const Cost&) const = default;
};

/// Key of a cost: problem, primitive name and layouts. Two nodes with one problem share it.
struct CostKey {
  std::string problem;
  std::string primitive;
  Layout src = Layout::kNchw;
  Layout dst = Layout::kNchw;
  auto operator<=>(const CostKey&) const = default;
};

[[nodiscard]] inline CostKey cost_key(const Problem& problem, const Primitive& primitive) {
  return {to_string(problem), primitive.name, primitive.src, primitive.dst};
}

/// What one node of a graph runs; the node is the one that anchors what is computed at once.
struct NodeChoice {
  std::string node;
  CostKey run;
  auto operator<=>(const NodeChoice&) const = default;
};

/// Two choices that meet in one network. An empty producer.node: whatever runs before.
struct PairKey {
  NodeChoice producer;
  NodeChoice reader;
  auto operator<=>(const PairKey&) const = default;
};

struct CostTable {
  std::map<CostKey, Cost> costs;
  /// What is added where both choices of a pair are made: how `reader` differs behind `producer`
  /// from how it runs alone. May be negative, but what `reader` costs with all of its pairs may
  /// not.
  std::map<PairKey, Ticks> pairs;
  bool operator==(const CostTable&) const = default;
};

/// The one place that prices views; see ir/view.h.
[[nodiscard]] inline std::optional<Cost> find_cost(const CostTable& table, const CostKey& key) {
  if (is_view(key.primitive)) return Cost{0, CostSource::kConstruction};
  const auto it = table.costs.find(key);
  if (it == table.costs.end()) return std::nullopt;
  return it->second;
}

}  // namespace torchalgo

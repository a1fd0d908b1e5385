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

/// The unit of costs, 1/1024 ns. Costs are integers in the solver, so that sums and ties are exact.
using Ticks = std::int64_t;

/// The origin of a cost: measured, a lower bound, predicted by a model, or 0 because it is a view.
enum class CostSource : std::uint8_t { kMeasured, kBound, kModel, kConstruction };

struct Cost {
  Ticks ticks = 0;
  CostSource source = CostSource::kMeasured;
  bool operator==(const Cost&) const = default;
};

/// The key of a cost: problem, primitive name and layouts. Nodes with the same problem share it.
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

struct CostTable {
  std::map<CostKey, Cost> costs;
  bool operator==(const CostTable&) const = default;
};

/// Returns the cost of `key`, or nullopt if the table has none. A view costs 0 (ir/view.h); no
/// other function prices views.
[[nodiscard]] inline std::optional<Cost> find_cost(const CostTable& table, const CostKey& key) {
  if (is_view(key.primitive)) return Cost{0, CostSource::kConstruction};
  const auto it = table.costs.find(key);
  if (it == table.costs.end()) return std::nullopt;
  return it->second;
}

}  // namespace torchalgo

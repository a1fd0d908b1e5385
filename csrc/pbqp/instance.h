// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "pbqp/problem.h"

namespace torchalgo::pbqp {

/// a + b, kForbidden if either is. Costs are >= 0, so the unsigned sum of two cannot wrap.
[[nodiscard]] inline Cost add(Cost a, Cost b) {
  const std::uint64_t sum = static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b);
  return sum < static_cast<std::uint64_t>(kForbidden) ? static_cast<Cost>(sum) : kForbidden;
}

/// Costs of a pair of nodes: cells[a * size(v) + b] for value a of u, b of v.
struct PairTable {
  int u = 0, v = 0;  // u < v
  std::vector<Cost> cells;
};

/// What the solver works on: a Problem with at most one table per pair of nodes, and a constant.
/// Values are positions in `nodes[i]`; a value whose cost is kForbidden is out of the domain.
struct Instance {
  Cost constant = 0;
  std::vector<std::vector<Cost>> nodes;
  std::vector<PairTable> pairs;  // sorted by (u, v) where made by make_instance
};

/// One list of positions per node, ascending: the values that stay.
using Values = std::vector<std::vector<int>>;

struct Restricted {
  Instance instance;
  Values values;  // values[i][a] is the position in the source of value a of node i
};

/// cells[b * rows + a] of cells[a * cols + b].
[[nodiscard]] std::vector<Cost> transposed(const std::vector<Cost>& cells, std::size_t rows,
                                           std::size_t cols);

/// Adds up parallel edges and orients every table. `problem` must have passed check_problem.
[[nodiscard]] Instance make_instance(const Problem& problem);

/// `instance` with only the values `kept`.
[[nodiscard]] Restricted restrict_values(const Instance& instance, Values kept);

/// `instance` without the values that kForbidden takes out; tables that keep all are moved.
[[nodiscard]] Restricted drop_forbidden(Instance instance);

/// The cost of one value per node, kForbidden if the choice holds anything forbidden.
[[nodiscard]] Cost cost_of(const Instance& instance, const std::vector<int>& choice);

/// No allowed choice costs more than this: the sum of all finite maxima.
[[nodiscard]] Cost largest_cost(const Instance& instance);

/// The nodes of each connected part, ascending; parts in the order of their lowest node.
[[nodiscard]] std::vector<std::vector<int>> connected_parts(const Instance& instance);

/// The part of `instance` on `nodes`, which no table may leave; its constant is 0.
[[nodiscard]] Instance part_of(const Instance& instance, const std::vector<int>& nodes);

/// The table seen from `row_node` (u or v): cells[a * size(other) + b], a of row_node.
[[nodiscard]] std::vector<Cost> rows_of(const Instance& instance, const PairTable& pair,
                                        int row_node);

}  // namespace torchalgo::pbqp

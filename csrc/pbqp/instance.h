// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "pbqp/problem.h"

namespace torchalgo::pbqp {

/// Returns a + b, or kForbidden if either is kForbidden. Costs are >= 0, so the unsigned sum of two
/// costs cannot wrap.
[[nodiscard]] inline Cost add(Cost a, Cost b) {
  const std::uint64_t sum = static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b);
  return sum < static_cast<std::uint64_t>(kForbidden) ? static_cast<Cost>(sum) : kForbidden;
}

/// The costs of a pair of nodes: cells[a * size(v) + b] for value a of u, b of v.
struct PairTable {
  int u = 0, v = 0;  // u < v
  std::vector<Cost> cells;
};

/// The form of a Problem on which the solver works. It has at most one table per pair of nodes, and
/// a constant. Values are positions in `nodes[i]`. A value whose cost is kForbidden does not belong
/// to the domain.
struct Instance {
  Cost constant = 0;
  std::vector<std::vector<Cost>> nodes;
  std::vector<PairTable> pairs;  // sorted by (u, v) if made by make_instance
};

/// The values to keep: one ascending list of positions per node.
using Values = std::vector<std::vector<int>>;

struct Restricted {
  Instance instance;
  Values values;  // values[i][a] is the position in the source of value a of node i
};

/// Returns the transposed matrix: element b * rows + a is cells[a * cols + b].
[[nodiscard]] std::vector<Cost> transposed(const std::vector<Cost>& cells, std::size_t rows,
                                           std::size_t cols);

/// Returns the instance of a problem. Parallel edges are added up, and every table has u < v.
/// `problem` must have passed check_problem.
[[nodiscard]] Instance make_instance(const Problem& problem);

/// Returns `instance` with only the values `kept`.
[[nodiscard]] Restricted restrict_values(const Instance& instance, Values kept);

/// Returns `instance` without the values whose cost is kForbidden. Tables that keep all values are
/// moved.
[[nodiscard]] Restricted drop_forbidden(Instance instance);

/// Returns the cost of one value per node, or kForbidden if the choice picks anything forbidden.
[[nodiscard]] Cost cost_of(const Instance& instance, const std::vector<int>& choice);

/// Returns the sum of all finite maxima. No allowed choice costs more.
[[nodiscard]] Cost largest_cost(const Instance& instance);

/// Returns the nodes of each connected part in ascending order. Parts are in the order of their
/// lowest node.
[[nodiscard]] std::vector<std::vector<int>> connected_parts(const Instance& instance);

/// Returns the part of `instance` on `nodes`. No table may connect them with other nodes. Its
/// constant is 0.
[[nodiscard]] Instance part_of(const Instance& instance, const std::vector<int>& nodes);

/// Returns the table with the values of `row_node` (u or v) as rows: cells[a * size(other) + b], a
/// of row_node.
[[nodiscard]] std::vector<Cost> rows_of(const Instance& instance, const PairTable& pair,
                                        int row_node);

}  // namespace torchalgo::pbqp

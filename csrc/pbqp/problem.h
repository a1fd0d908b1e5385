// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace torchalgo::pbqp {

using Cost = std::int64_t;

/// The matrix entry of a pair of alternatives that must not be chosen together. It is never added
/// to other costs.
inline constexpr Cost kForbidden = std::numeric_limits<Cost>::max();

/// The costs of pairs of alternatives of two nodes: matrix[i * node_costs[v].size() + j] for
/// alternative i of u, j of v.
struct Edge {
  int u = 0, v = 0;  // u != v; several edges between one pair add up
  std::vector<Cost> matrix;
  bool operator==(const Edge&) const = default;
};

/// A partitioned Boolean quadratic problem: pick one alternative per node so that the sum of node
/// and edge costs is least. Costs are >= 0 in one unit. A forbidden alternative is kForbidden in
/// node_costs.
struct Problem {
  std::vector<std::vector<Cost>> node_costs;  // one list per node
  std::vector<Edge> edges;
  bool operator==(const Problem&) const = default;
};

/// Checks that `problem` is valid. A node without (allowed) alternatives is valid and makes the
/// problem infeasible.
/// @throws std::invalid_argument  if a cost is negative, an edge connects a node with itself or
/// with none, a matrix does not fit its nodes, or the largest possible sum of finite costs exceeds
/// int64.
void check_problem(const Problem& problem);

/// Returns the cost of a choice, or kForbidden if the choice picks anything forbidden.
/// @throws std::invalid_argument  if the choice has the wrong length or is out of range.
[[nodiscard]] Cost evaluate(const Problem& problem, const std::vector<int>& choice);

}  // namespace torchalgo::pbqp

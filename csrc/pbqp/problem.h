// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace torchalgo::pbqp {

using Cost = std::int64_t;

/// The matrix entry of a pair that may not be chosen together. Never summed.
inline constexpr Cost kForbidden = std::numeric_limits<Cost>::max();

/// Costs of a pair of alternatives: matrix[i * node_costs[v].size() + j] for alternative i of u, j
/// of v.
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

/// @throws std::invalid_argument  a negative cost, an edge from a node to itself or to none, a
/// matrix that does not fit its nodes, or finite costs whose largest possible sum exceeds int64. A
/// node without (allowed) alternatives is valid and makes the problem infeasible.
void check_problem(const Problem& problem);

/// The cost of a choice; kForbidden if the choice picks anything forbidden.
/// @throws std::invalid_argument  a choice of the wrong length or out of range.
[[nodiscard]] Cost evaluate(const Problem& problem, const std::vector<int>& choice);

}  // namespace torchalgo::pbqp

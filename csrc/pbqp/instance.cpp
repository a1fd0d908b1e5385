// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/instance.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace torchalgo::pbqp {
namespace {

std::vector<Cost> pick(const std::vector<Cost>& costs, const std::vector<int>& kept) {
  std::vector<Cost> result;
  result.reserve(kept.size());
  for (int a : kept) result.push_back(costs[a]);
  return result;
}

std::vector<Cost> pick(const PairTable& pair, std::size_t cols, const Values& kept) {
  std::vector<Cost> result;
  result.reserve(kept[pair.u].size() * kept[pair.v].size());
  for (int a : kept[pair.u])
    for (int b : kept[pair.v]) result.push_back(pair.cells[a * cols + b]);
  return result;
}

Cost largest_finite(const std::vector<Cost>& costs) {
  Cost largest = 0;
  for (Cost cost : costs)
    if (cost != kForbidden) largest = std::max(largest, cost);
  return largest;
}

}  // namespace

std::vector<Cost> transposed(const std::vector<Cost>& cells, std::size_t rows, std::size_t cols) {
  std::vector<Cost> result(cells.size());
  for (std::size_t a = 0; a < rows; ++a)
    for (std::size_t b = 0; b < cols; ++b) result[b * rows + a] = cells[a * cols + b];
  return result;
}

Instance make_instance(const Problem& problem) {
  Instance instance;
  instance.nodes = problem.node_costs;
  std::vector<int> order(problem.edges.size());
  std::iota(order.begin(), order.end(), 0);
  const auto pair_of = [&](int e) {
    const Edge& edge = problem.edges[e];
    return std::pair(std::min(edge.u, edge.v), std::max(edge.u, edge.v));
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return pair_of(a) < pair_of(b); });
  for (int e : order) {
    const Edge& edge = problem.edges[e];
    const auto [u, v] = pair_of(e);
    std::vector<Cost> cells = edge.matrix;
    if (edge.u != u)
      cells = transposed(cells, problem.node_costs[v].size(), problem.node_costs[u].size());
    if (!instance.pairs.empty() && instance.pairs.back().u == u && instance.pairs.back().v == v) {
      std::vector<Cost>& sum = instance.pairs.back().cells;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = add(sum[i], cells[i]);
    } else {
      instance.pairs.push_back({u, v, std::move(cells)});
    }
  }
  return instance;
}

Restricted restrict_values(const Instance& instance, Values kept) {
  Restricted result;
  result.instance.constant = instance.constant;
  for (std::size_t i = 0; i < kept.size(); ++i)
    result.instance.nodes.push_back(pick(instance.nodes[i], kept[i]));
  for (const PairTable& pair : instance.pairs)
    result.instance.pairs.push_back(
        {pair.u, pair.v, pick(pair, instance.nodes[pair.v].size(), kept)});
  result.values = std::move(kept);
  return result;
}

Restricted drop_forbidden(Instance instance) {
  Values kept(instance.nodes.size());
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    sizes.push_back(instance.nodes[i].size());
    for (std::size_t a = 0; a < sizes[i]; ++a)
      if (instance.nodes[i][a] != kForbidden) kept[i].push_back(static_cast<int>(a));
    if (kept[i].size() < sizes[i]) instance.nodes[i] = pick(instance.nodes[i], kept[i]);
  }
  for (PairTable& pair : instance.pairs)
    if (kept[pair.u].size() < sizes[pair.u] || kept[pair.v].size() < sizes[pair.v])
      pair.cells = pick(pair, sizes[pair.v], kept);
  return {std::move(instance), std::move(kept)};
}

Cost cost_of(const Instance& instance, const std::vector<int>& choice) {
  Cost cost = instance.constant;
  for (std::size_t i = 0; i < choice.size(); ++i) cost = add(cost, instance.nodes[i][choice[i]]);
  for (const PairTable& pair : instance.pairs)
    cost = add(cost, pair.cells[choice[pair.u] * instance.nodes[pair.v].size() + choice[pair.v]]);
  return cost;
}

Cost largest_cost(const Instance& instance) {
  Cost total = instance.constant;
  for (const auto& costs : instance.nodes) total = add(total, largest_finite(costs));
  for (const PairTable& pair : instance.pairs) total = add(total, largest_finite(pair.cells));
  return total;
}

std::vector<std::vector<int>> connected_parts(const Instance& instance) {
  const int count = static_cast<int>(instance.nodes.size());
  std::vector<int> parent(count);
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  // The lower root stays the root, so the root of a part is its lowest node.
  for (const PairTable& pair : instance.pairs) {
    const auto [low, high] = std::minmax({root(pair.u), root(pair.v)});
    parent[high] = low;
  }
  std::vector<std::vector<int>> by_root(count), parts;
  for (int i = 0; i < count; ++i) by_root[root(i)].push_back(i);
  for (auto& nodes : by_root)
    if (!nodes.empty()) parts.push_back(std::move(nodes));
  return parts;
}

Instance part_of(const Instance& instance, const std::vector<int>& nodes) {
  Instance part;
  std::vector<int> position(instance.nodes.size(), -1);
  for (int i : nodes) {
    position[i] = static_cast<int>(part.nodes.size());
    part.nodes.push_back(instance.nodes[i]);
  }
  for (const PairTable& pair : instance.pairs)
    if (position[pair.u] >= 0)
      part.pairs.push_back({position[pair.u], position[pair.v], pair.cells});
  return part;
}

std::vector<Cost> rows_of(const Instance& instance, const PairTable& pair, int row_node) {
  if (row_node == pair.u) return pair.cells;
  return transposed(pair.cells, instance.nodes[pair.u].size(), instance.nodes[pair.v].size());
}

}  // namespace torchalgo::pbqp

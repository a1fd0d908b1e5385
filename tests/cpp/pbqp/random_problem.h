// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "pbqp/problem.h"

namespace torchalgo::pbqp {

/// A seeded source of problems; `%` instead of a distribution: the same numbers on every library.
class RandomProblem {
 public:
  explicit RandomProblem(unsigned seed) : random_(seed) {}

  int below(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }

  Cost cost(int largest, int forbidden_percent) {
    return below(100) < forbidden_percent ? kForbidden : below(largest + 1);
  }

  std::vector<Cost> costs(std::size_t count, int largest, int forbidden_percent) {
    std::vector<Cost> result(count);
    for (Cost& entry : result) entry = cost(largest, forbidden_percent);
    return result;
  }

  void add_node(Problem& problem, int values, int largest, int forbidden_percent = 0) {
    problem.node_costs.push_back(costs(values, largest, forbidden_percent));
  }

  void add_edge(Problem& problem, int u, int v, int largest, int forbidden_percent = 0) {
    const std::size_t cells = problem.node_costs[u].size() * problem.node_costs[v].size();
    problem.edges.push_back({u, v, costs(cells, largest, forbidden_percent)});
  }

  /// 0 to 7 nodes of 1 to 4 values; density, zeros, forbidden entries and parallel edges vary.
  Problem small() {
    Problem problem;
    const int nodes = below(8), density = below(101);
    const int largest = below(3) == 0 ? 2 : 50, forbidden = below(2) * below(40);
    for (int i = 0; i < nodes; ++i) add_node(problem, 1 + below(4), largest, forbidden / 3);
    for (int u = 0; u < nodes; ++u)
      for (int v = 0; v < nodes; ++v)
        if (u != v && below(200) < density) add_edge(problem, u, v, largest, forbidden);
    return problem;
  }

  /// Every pair of nodes joined.
  Problem dense(int nodes, int values, int largest, int forbidden_percent = 0) {
    Problem problem;
    for (int i = 0; i < nodes; ++i) add_node(problem, values, largest);
    for (int u = 0; u < nodes; ++u)
      for (int v = u + 1; v < nodes; ++v) add_edge(problem, u, v, largest, forbidden_percent);
    return problem;
  }

  Problem grid(int rows, int cols, int values, int largest) {
    Problem problem;
    for (int i = 0; i < rows * cols; ++i) add_node(problem, values, largest);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < cols; ++c) {
        if (c + 1 < cols) add_edge(problem, r * cols + c, r * cols + c + 1, largest);
        if (r + 1 < rows) add_edge(problem, r * cols + c, (r + 1) * cols + c, largest);
      }
    return problem;
  }

  std::vector<int> permutation(int count) {
    std::vector<int> order(count);
    for (int i = 0; i < count; ++i) order[i] = i;
    for (int i = count - 1; i > 0; --i) std::swap(order[i], order[below(i + 1)]);
    return order;
  }

 private:
  std::mt19937 random_;
};

/// The optimum by trying every choice; kForbidden if there is none.
inline Cost brute_force(const Problem& problem) {
  std::vector<int> choice(problem.node_costs.size(), 0);
  for (const auto& costs : problem.node_costs)
    if (costs.empty()) return kForbidden;
  Cost best = kForbidden;
  for (;;) {
    best = std::min(best, evaluate(problem, choice));
    std::size_t i = 0;
    while (i < choice.size() && ++choice[i] == static_cast<int>(problem.node_costs[i].size()))
      choice[i++] = 0;
    if (i == choice.size()) return best;
  }
}

}  // namespace torchalgo::pbqp

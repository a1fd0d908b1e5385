// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "pbqp/eliminate.h"
#include "random_problem.h"

namespace torchalgo::pbqp {
namespace {

/// Cells and width of an order, by playing the elimination on neighbour sets.
EliminationOrder replay(const Instance& instance, const std::vector<int>& nodes) {
  std::vector<std::set<int>> neighbours(instance.nodes.size());
  for (const PairTable& pair : instance.pairs) {
    neighbours[pair.u].insert(pair.v);
    neighbours[pair.v].insert(pair.u);
  }
  EliminationOrder order{nodes, 0, 0};
  for (int node : nodes) {
    std::int64_t cells = static_cast<std::int64_t>(instance.nodes[node].size());
    for (int a : neighbours[node]) {
      cells *= static_cast<std::int64_t>(instance.nodes[a].size());
      neighbours[a].erase(node);
      for (int b : neighbours[node])
        if (a != b) neighbours[a].insert(b);
    }
    order.width = std::max(order.width, static_cast<int>(neighbours[node].size()));
    order.cells += cells;
  }
  return order;
}

TEST(FindOrder, CountsWhatItsOrderCosts) {
  RandomProblem random(51);
  for (int i = 0; i < 100; ++i) {
    Problem problem;
    for (int node = 0; node < 14; ++node) random.add_node(problem, 2 + random.below(4), 9);
    for (int u = 0; u < 14; ++u)
      for (int v = u + 1; v < 14; ++v)
        if (random.below(4) == 0) random.add_edge(problem, u, v, 9);
    const Instance instance = make_instance(problem);
    const auto order = find_order(instance, std::int64_t{1} << 40);
    ASSERT_TRUE(order);
    const EliminationOrder expected = replay(instance, order->nodes);
    EXPECT_EQ(order->cells, expected.cells);
    EXPECT_EQ(order->width, expected.width);
    std::vector<int> sorted = order->nodes;
    std::sort(sorted.begin(), sorted.end());
    for (int node = 0; node < 14; ++node) EXPECT_EQ(sorted[node], node);
    EXPECT_TRUE(find_order(instance, order->cells));
    EXPECT_FALSE(find_order(instance, order->cells - 1));
  }
}

TEST(FindOrder, FindsTheWidthOfGridsAndCliques) {
  RandomProblem random(52);
  const auto clique = find_order(make_instance(random.dense(9, 2, 9)), 1 << 20);
  ASSERT_TRUE(clique);
  EXPECT_EQ(clique->width, 8);
  const auto grid = find_order(make_instance(random.grid(3, 30, 2, 9)), 1 << 20);
  ASSERT_TRUE(grid);
  EXPECT_EQ(grid->width, 3);
}

TEST(FindOrder, GivesUpOnTablesAboveTheCap) {
  RandomProblem random(53);
  EXPECT_FALSE(find_order(make_instance(random.dense(30, 4, 9)), 30'000'000));
  EXPECT_FALSE(find_order(make_instance(random.dense(2, 2, 9)), 0));
  EXPECT_TRUE(find_order({}, 0));
}

/// Values that read one of `classes` and write one: neighbours see one of the two.
Problem layered(RandomProblem& random, int nodes, int classes, int percent) {
  Problem problem;
  for (int i = 0; i < nodes; ++i) random.add_node(problem, classes * classes, 50);
  for (int u = 0; u < nodes; ++u)
    for (int v = u + 1; v < nodes; ++v) {
      if (random.below(100) >= percent) continue;
      const std::vector<Cost> change = random.costs(classes * classes, 50, 10);
      Edge edge{u, v, {}};
      for (int a = 0; a < classes * classes; ++a)
        for (int b = 0; b < classes * classes; ++b)
          edge.matrix.push_back(change[a / classes * classes + b % classes]);
      problem.edges.push_back(std::move(edge));
    }
  return problem;
}

TEST(FindClassOrder, CountsEachNeighbourOnlyAsFinelyAsTablesTellItsValuesApart) {
  RandomProblem random(55);
  const Instance hub = make_instance(layered(random, 2, 3, 100));
  EXPECT_EQ(find_order(hub, 1 << 20)->cells, 9 * 9 + 9);
  EXPECT_EQ(find_class_order(hub, 1 << 20)->cells, 9 * 3 + 9);
  for (int i = 0; i < 50; ++i) {
    const Instance instance = make_instance(layered(random, 8, 3, 60));
    const auto by_class = find_class_order(instance, std::int64_t{1} << 40);
    ASSERT_TRUE(by_class);
    EXPECT_LE(by_class->cells, replay(instance, by_class->nodes).cells);
    EXPECT_FALSE(find_class_order(instance, by_class->cells - 1));
  }
}

TEST(Eliminate, EqualsBruteForceWhereNeighboursSeeClasses) {
  RandomProblem random(56);
  for (int i = 0; i < 300; ++i) {
    const Problem problem = layered(random, 2 + random.below(4), 2, 80);
    const Instance instance = make_instance(problem);
    const auto nodes = random.permutation(static_cast<int>(instance.nodes.size()));
    const Exact exact = *eliminate(instance, {nodes, 0, 0});
    ASSERT_EQ(exact.cost, brute_force(problem));
    if (exact.cost != kForbidden) EXPECT_EQ(evaluate(problem, exact.choice), exact.cost);
  }
}

TEST(Eliminate, EqualsBruteForceInAnyOrder) {
  RandomProblem random(54);
  for (int i = 0; i < 500; ++i) {
    const Problem problem = random.small();
    const Instance instance = make_instance(problem);
    const auto nodes = random.permutation(static_cast<int>(instance.nodes.size()));
    const Exact exact = *eliminate(instance, replay(instance, nodes));
    ASSERT_EQ(exact.cost, brute_force(problem));
    if (exact.cost != kForbidden) EXPECT_EQ(evaluate(problem, exact.choice), exact.cost);
  }
}

}  // namespace
}  // namespace torchalgo::pbqp

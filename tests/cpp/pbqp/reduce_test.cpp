// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/reduce.h"

#include <gtest/gtest.h>

#include "pbqp/eliminate.h"
#include "pbqp/text.h"
#include "random_problem.h"

namespace torchalgo::pbqp {
namespace {

Reduction reduce_problem(const Problem& problem) {
  return reduce(drop_forbidden(make_instance(problem)));
}

TEST(Reduce, KeepsTheOptimumAndLiftsItsChoice) {
  RandomProblem random(41);
  int cores = 0;
  for (int i = 0; i < 1'000; ++i) {
    const Problem problem = random.dense(5, 3, 9, random.below(50));
    const Cost optimum = brute_force(problem);
    const Reduction reduction = reduce_problem(problem);
    if (reduction.infeasible) {
      EXPECT_EQ(optimum, kForbidden) << to_text(problem);
      continue;
    }
    cores += !reduction.core.nodes.empty();
    const Exact exact = *eliminate(reduction.core, *find_order(reduction.core, 1 << 20));
    ASSERT_EQ(exact.cost, optimum) << to_text(problem);
    if (optimum != kForbidden)
      EXPECT_EQ(evaluate(problem, lift(reduction, exact.choice)), optimum) << to_text(problem);
  }
  EXPECT_GT(cores, 100);
}

TEST(Reduce, LeavesNodesOfThreeNeighboursAndTwoValuesOnly) {
  RandomProblem random(42);
  for (int i = 0; i < 200; ++i) {
    const Reduction reduction = reduce_problem(random.grid(4, 4, 3, 100));
    std::vector<int> degree(reduction.core.nodes.size(), 0);
    for (const PairTable& pair : reduction.core.pairs) ++degree[pair.u], ++degree[pair.v];
    for (std::size_t node = 0; node < degree.size(); ++node) {
      EXPECT_GE(degree[node], 3);
      EXPECT_GE(reduction.core.nodes[node].size(), 2u);
    }
  }
}

TEST(Reduce, SolvesTreesAndRingsAlone) {
  RandomProblem random(43);
  Problem ring;
  for (int i = 0; i < 8; ++i) random.add_node(ring, 4, 100);
  for (int i = 0; i < 8; ++i) random.add_edge(ring, i, (i + 1) % 8, 100, 20);
  const Reduction reduction = reduce_problem(ring);
  ASSERT_FALSE(reduction.infeasible);
  EXPECT_TRUE(reduction.core.nodes.empty());
  EXPECT_EQ(reduction.core.constant, brute_force(ring));
}

TEST(Reduce, DropsTablesThatAreSumsOfNodeCosts) {
  RandomProblem random(44);
  Problem problem = random.dense(6, 4, 100);
  for (Edge& edge : problem.edges)
    for (int a = 0; a < 4; ++a)
      for (int b = 0; b < 4; ++b) edge.matrix[a * 4 + b] = 7 * a + 3 * b * edge.u;
  const Reduction reduction = reduce_problem(problem);
  EXPECT_TRUE(reduction.core.nodes.empty());
  EXPECT_EQ(reduction.core.constant, brute_force(problem));
}

TEST(Reduce, DropsDominatedValues) {
  RandomProblem random(45);
  Problem problem = random.dense(5, 3, 100);
  for (auto& costs : problem.node_costs) costs[2] = 1000;  // dearer than all tables could give back
  const Reduction reduction = reduce_problem(problem);
  for (const auto& values : reduction.core_values)
    for (int value : values) EXPECT_NE(value, 2);
}

}  // namespace
}  // namespace torchalgo::pbqp

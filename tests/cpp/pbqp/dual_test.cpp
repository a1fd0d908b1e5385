// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/dual.h"

#include <gtest/gtest.h>

#include "pbqp/text.h"
#include "random_problem.h"

namespace torchalgo::pbqp {
namespace {

/// The optimum among the choices with value `value` of `node`.
Cost optimum_with(const Problem& problem, int node, int value) {
  Problem fixed = problem;
  for (int a = 0; a < static_cast<int>(fixed.node_costs[node].size()); ++a)
    if (a != value) fixed.node_costs[node][a] = kForbidden;
  return brute_force(fixed);
}

void expect_sound(const Problem& problem, const DualValue& value) {
  EXPECT_LE(value.lower_bound, brute_force(problem)) << to_text(problem);
  for (int i = 0; i < static_cast<int>(problem.node_costs.size()); ++i)
    for (int a = 0; a < static_cast<int>(problem.node_costs[i].size()); ++a)
      EXPECT_LE(value.value_bounds[i][a], optimum_with(problem, i, a))
          << "node " << i << " value " << a << "\n"
          << to_text(problem);
}

TEST(Dual, BoundsEveryValueFromBelowAfterEveryPass) {
  RandomProblem random(31);
  for (int i = 0; i < 60; ++i) {
    const Problem problem = random.dense(4, 3, 20, i % 3 * 15);
    Dual dual(make_instance(problem));
    for (int pass = 0; pass < 6; ++pass) {
      expect_sound(problem, dual.evaluate());
      dual.pass();
    }
    if (HasFailure()) return;
  }
}

TEST(Dual, IsExactOnTrees) {
  RandomProblem random(32);
  for (int i = 0; i < 100; ++i) {
    Problem tree;
    for (int node = 0; node < 7; ++node) {
      random.add_node(tree, 3, 1 << 20);
      if (node > 0) random.add_edge(tree, random.below(node), node, 1 << 20);
    }
    Dual dual(make_instance(tree));
    for (int pass = 0; pass < 60; ++pass) dual.pass();
    const Cost optimum = brute_force(tree), bound = dual.evaluate().lower_bound;
    EXPECT_LE(bound, optimum);
    EXPECT_GE(bound, optimum - optimum / 100) << to_text(tree);  // rounding down costs a little
  }
}

TEST(Dual, StaysSoundWhenCostsExceedWhatItsMessagesHold) {
  RandomProblem random(33);
  for (int i = 0; i < 40; ++i) {
    Problem problem = random.dense(4, 3, 15, 30);
    for (Edge& edge : problem.edges)
      for (Cost& cost : edge.matrix)
        if (cost != kForbidden) cost <<= 56;
    Dual dual(make_instance(problem));
    for (int pass = 0; pass < 50; ++pass) dual.pass();
    expect_sound(problem, dual.evaluate());
    if (HasFailure()) return;
  }
}

TEST(Dual, RoundsToAChoiceInRange) {
  RandomProblem random(34);
  for (int i = 0; i < 100; ++i) {
    const Problem problem = random.dense(5, 4, 20, 20);
    Dual dual(make_instance(problem));
    dual.pass();
    const std::vector<int> choice = dual.round();
    EXPECT_GE(evaluate(problem, choice), brute_force(problem));
  }
}

}  // namespace
}  // namespace torchalgo::pbqp

// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include "planner/brute_force.h"
#include "planner/sample.h"

namespace torchalgo::planner_test {
namespace {

bool is_same(const Primitive& a, const Primitive& b) {
  return a.name == b.name && a.src == b.src && a.dst == b.dst;
}

// The best plan in which `node` runs a primitive of its own that `wanted` admits.
std::optional<Ticks> least_cost_where(const Sample& sample, int node, const auto& wanted) {
  return least_cost(sample, [&](const Candidate& c) {
    if (c.covers[0] == node) return static_cast<bool>(wanted(c.primitive));
    return std::find(c.covers.begin(), c.covers.end(), node) == c.covers.end();
  });
}

}  // namespace

TEST(Regrets, EqualBruteForceOnRandomDataFlows) {
  std::mt19937_64 random(11);
  int known = 0, ties = 0;
  for (int i = 0; i < 250; ++i) {
    RandomSizes sizes;
    sizes.nodes = 5;
    sizes.extra_candidates = 3;
    sizes.max_cost = i % 2 == 0 ? 3 : 500;
    const Sample sample = random_sample(random, sizes);
    PlanOptions options;
    options.with_regrets = true;
    const Plan plan =
        make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs, options).plan;
    std::size_t position = 0;
    for (int n = 0; n < static_cast<int>(sample.graph.nodes.size()); ++n) {
      if (!sample.graph.nodes[n].problem) continue;
      const PlanNode& node = plan.nodes[position++];
      std::optional<Ticks> other, runner_up;
      if (node.absorbed_by.empty()) {
        other = least_cost_where(sample, n,
                                 [&](const Primitive& p) { return !is_same(p, node.primitive); });
        runner_up = least_cost_where(
            sample, n, [&](const Primitive& p) { return to_string(p) == node.runner_up; });
      }
      ASSERT_EQ(node.regret.has_value(), other.has_value()) << node.name << "\n"
                                                            << describe(sample);
      if (!other) continue;
      EXPECT_EQ(plan.cost + *node.regret, *other) << node.name << "\n" << describe(sample);
      EXPECT_EQ(runner_up, other) << node.name << " " << node.runner_up << "\n" << describe(sample);
      EXPECT_NE(node.runner_up, to_string(node.primitive));
      ++known;
      ties += *node.regret == 0;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(known, 300);
  EXPECT_GT(ties, 30);
}

TEST(Regrets, AreNotComputedUnlessAskedFor) {
  std::mt19937_64 random(12);
  const Sample sample = random_sample(random);
  const Plan plan =
      make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs).plan;
  for (const PlanNode& node : plan.nodes) EXPECT_FALSE(node.regret.has_value());
}

}  // namespace torchalgo::planner_test

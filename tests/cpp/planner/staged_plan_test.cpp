// SPDX-License-Identifier: BSD-3-Clause
#include "planner/staged_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "planner/brute_force.h"
#include "planner/sample.h"
#include "planner/training_graph.h"

namespace torchalgo::planner_test {
namespace {

PlanResult staged_plan_of(const Sample& sample, const PlanOptions& options = {}) {
  return make_staged_plan(sample.graph, sample.candidates, sample.transforms, sample.costs,
                          options);
}

Plan joint_plan_of(const Sample& sample) {
  return make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs).plan;
}

// Two convolutions and their gradients. Each primitive reads and writes one layout.
struct Conflict {
  Sample sample;
  Conflict() {
    FlowBuilder flow;
    flow.output(flow.conv(flow.conv(flow.input(8), 8), 8));
    sample.graph = training_graph(flow.graph());
    sample.candidates.refusals.resize(sample.graph.nodes.size());
    for (int n = 0; n < static_cast<int>(sample.graph.nodes.size()); ++n) {
      auto& own = sample.candidates.by_anchor.emplace_back();
      for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
        own.push_back(candidate(sample.graph, {n}, "test.a", layout, layout));
      }
    }
  }
  void set_cost(int node, Layout layout, Ticks ticks) {
    for (const Candidate& c : sample.candidates.by_anchor[node]) {
      if (c.primitive.src == layout)
        sample.costs.costs[cost_key(c.problem, c.primitive)] = {ticks, CostSource::kMeasured};
    }
  }
};

}  // namespace

TEST(StagedPlan, TakesTheFastestForwardPassWhateverTheGradientsPay) {
  Conflict conflict;
  const Graph& graph = conflict.sample.graph;
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    const bool is_forward = graph.nodes[n].name.find("bwd") == std::string::npos;
    conflict.set_cost(n, Layout::kNchw, is_forward ? 100 : 200);
    conflict.set_cost(n, Layout::kNhwc, is_forward ? 101 : 100);
  }
  add_transforms_and_costs(conflict.sample, [] { return 1000; });
  // All transforms are too expensive. So the gradients follow the forward pass.
  const auto gradients = static_cast<Ticks>(graph.nodes.size() - 2);
  EXPECT_EQ(staged_plan_of(conflict.sample).plan.cost, 2 * 100 + gradients * 200);
}

TEST(StagedPlan, IsValidAndCostsAtLeastAsMuchAsTheCommonChoice) {
  std::mt19937_64 random(41);
  int dearer = 0;
  for (int round = 0; round < 600; ++round) {
    const Sample sample = random_training_sample(random, {.nodes = 3 + round % 5});
    const Plan staged = staged_plan_of(sample).plan;
    const Ticks joint = joint_plan_of(sample).cost;
    std::string why;
    ASSERT_EQ(replay(sample, staged, why), staged.cost) << why << "\n" << describe(sample);
    ASSERT_GE(staged.cost, joint);
    dearer += staged.cost > joint ? 1 : 0;
  }
  EXPECT_GT(dearer, 50);
}

TEST(StagedPlan, KeepsWhatIsNotAllowedOut) {
  std::mt19937_64 random(42);
  const Sample sample = random_training_sample(random, {.nodes = 6, .extra_candidates = 3});
  PlanOptions options;
  options.allow = [](const Candidate& c) { return c.covers.size() == 1; };
  for (const PlanNode& node : staged_plan_of(sample, options).plan.nodes) {
    EXPECT_EQ(node.absorbed_by, "");
  }
}

TEST(StagedPlan, AsksForCostsThatAreMissing) {
  std::mt19937_64 random(43);
  Sample sample = random_training_sample(random, {.nodes = 4});
  sample.costs.costs.clear();
  const PlanResult result = staged_plan_of(sample);
  EXPECT_FALSE(result.wanted.empty());
  EXPECT_TRUE(result.plan.structure_hash.empty());
}

}  // namespace torchalgo::planner_test

// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "planner/allowed.h"
#include "planner/brute_force.h"
#include "planner/encode.h"
#include "planner/sample.h"

namespace torchalgo::planner_test {
namespace {

// Nodes run in every layout; a convolution and what it absorbs also changes it. The costs prefer
// no layout, which is worse than any real table.
Sample with_every_layout(const Graph& graph, std::uint64_t seed, Ticks transform_floor = 0) {
  Sample sample{graph, {}, {}, {}};
  sample.candidates.by_anchor.resize(graph.nodes.size());
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    if (!graph.nodes[n].problem) continue;
    for (const auto& covers : chains_from(graph, n)) {
      for (const Layout src : kAllLayouts) {
        for (const Layout dst : kAllLayouts) {
          if (src != dst && graph.nodes[n].kind != "conv") continue;
          // Names of their own keep the costs of equal problems apart.
          const std::string name = "test." + graph.nodes[n].name;
          sample.candidates.by_anchor[n].push_back(candidate(graph, covers, name, src, dst));
        }
      }
    }
  }
  std::mt19937_64 random(seed);
  add_transforms_and_costs(sample, [&] { return static_cast<Ticks>(random() % 1000000); });
  for (const Candidate& transform : sample.transforms) {
    sample.costs.costs[cost_key(transform.problem, transform.primitive)].ticks += transform_floor;
  }
  return sample;
}

Plan plan_of(const Sample& sample, const PlanOptions& options = {}) {
  return make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs, options).plan;
}

void expect_proven(const Sample& sample) {
  const Plan plan = plan_of(sample);
  std::string why;
  EXPECT_EQ(plan.status, PlanStatus::kOptimal) << plan.method;
  EXPECT_EQ(plan.lower_bound, plan.cost);
  EXPECT_EQ(replay(sample, plan, why), plan.cost) << why;
  ::testing::Test::RecordProperty("method", plan.method);
}

// Each layer reads the concatenation of everything before it (Huang et al. 2017, CVPR).
int dense_block(FlowBuilder& flow, int src, int layers) {
  std::vector<int> features = {src};
  for (int i = 0; i < layers; ++i) {
    const int joined = features.size() == 1 ? src : flow.concat(features);
    features.push_back(flow.conv(flow.relu(flow.conv(flow.relu(joined), 32)), 8));
  }
  return flow.concat(features);
}

int inception_module(FlowBuilder& flow, int src) {
  const int a = flow.relu(flow.conv(src, 16));
  const int b = flow.relu(flow.conv(flow.relu(flow.conv(src, 8)), 16));
  const int stem = flow.relu(flow.conv(src, 8));
  const int c = flow.relu(flow.conv(stem, 8)), d = flow.relu(flow.conv(stem, 8));
  const int e = flow.relu(flow.conv(flow.relu(src), 8));
  return flow.concat({a, b, flow.concat({c, d}), e});
}

int residual_block(FlowBuilder& flow, int src) {
  const int c = flow.conv(flow.relu(flow.conv(flow.relu(flow.conv(src, 8)), 8)), 16);
  return flow.relu(flow.add(c, src));
}

}  // namespace

TEST(MakePlan, ProvesDenseBlocksOptimal) {
  for (const int layers : {24, 48}) {
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      SCOPED_TRACE(fmt::format("{} layers, seed {}", layers, seed));
      FlowBuilder flow;
      const int first = dense_block(flow, flow.conv(flow.input(8), 16), layers);
      flow.output(dense_block(flow, flow.conv(flow.relu(first), 16), 12));
      expect_proven(with_every_layout(flow.graph(), seed));
    }
  }
}

TEST(MakePlan, ProvesInceptionModulesOptimal) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(seed);
    FlowBuilder flow;
    int value = flow.conv(flow.input(8), 16);
    for (int i = 0; i < 10; ++i) value = inception_module(flow, value);
    flow.output(value);
    expect_proven(with_every_layout(flow.graph(), seed));
  }
}

TEST(MakePlan, ProvesLongResidualNetsWithFusionOptimal) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(seed);
    FlowBuilder flow;
    int value = flow.conv(flow.input(8), 16);
    for (int i = 0; i < 50; ++i) value = residual_block(flow, value);
    flow.output(value);
    expect_proven(with_every_layout(flow.graph(), seed));
  }
}

TEST(MakePlan, GivesABoundAndNoWorseThanASingleLayoutWhereTimeIsShort) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    FlowBuilder flow;
    std::vector<int> values = {flow.conv(flow.input(8), 8)};
    for (int i = 0; i < 60; ++i) {  // any two earlier values: wide, unlike any net
      const int a = values[random() % values.size()], b = values[random() % values.size()];
      values.push_back(flow.conv(flow.concat({a, b, values.back()}), 8));
    }
    flow.output(values.back());
    const Sample sample = with_every_layout(flow.graph(), seed, 3000000);
    PlanOptions options;
    options.time_limit_s = 0;
    const Plan plan = plan_of(sample, options);
    std::string why;
    EXPECT_EQ(replay(sample, plan, why), plan.cost) << why;
    EXPECT_LE(plan.lower_bound, plan.cost);
    EXPECT_EQ(plan.status == PlanStatus::kOptimal, plan.lower_bound == plan.cost);
    for (const Layout layout : kAllLayouts) {
      options.layouts = {layout};
      EXPECT_LE(plan.cost, plan_of(sample, options).cost);
    }
  }
}

TEST(Encode, SharesOneSetVariablePerLayerOfADenseBlock) {
  for (const int layers : {24, 48}) {
    FlowBuilder flow;
    flow.output(dense_block(flow, flow.conv(flow.input(8), 16), layers));
    const Sample sample = with_every_layout(flow.graph(), 0);
    const auto allowed = planner::allowed_candidates(sample.graph, sample.candidates, {});
    const std::vector<planner::ValueFlow> values = planner::trace_values(sample.graph);
    std::set<CostKey> missing;
    const planner::Model model{
        sample.graph, values,
        planner::list_alternatives(sample.graph,
                                   planner::price_candidates(allowed, sample.costs, missing)),
        planner::price_transforms(values, planner::layouts_at_values(sample.graph, values, allowed),
                                  planner::kLayoutSetCount - 1, sample.transforms, sample.costs,
                                  missing)};
    ASSERT_TRUE(missing.empty());
    const planner::Encoding encoding = planner::encode(model);
    const std::size_t sets = encoding.problem.node_costs.size() - sample.graph.nodes.size();
    EXPECT_LE(sets, static_cast<std::size_t>(layers + 1));
    // Of the quadratic number of reads only a linear number of edges is left.
    EXPECT_LE(encoding.problem.edges.size(), 3 * sample.graph.nodes.size());
  }
}

}  // namespace torchalgo::planner_test

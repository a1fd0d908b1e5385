// SPDX-License-Identifier: BSD-3-Clause
#include "planner/transforms.h"

#include <gtest/gtest.h>

#include <random>

#include "pbqp/problem.h"
#include "planner/sample.h"

namespace torchalgo::planner {
namespace {

// Least cost from the layouts made so far, by trying every next hop.
Ticks search(const LayoutChanges& changes, Layout root, LayoutSet made, LayoutSet wanted) {
  if (includes(made, wanted)) return 0;
  Ticks best = pbqp::kForbidden;
  for (const Layout from : kAllLayouts) {
    for (const Layout to : kAllLayouts) {
      const PricedCandidate& hop = changes.direct[index_of(from)][index_of(to)];
      if (hop.candidate == nullptr || !includes(made, set_of(from)) || includes(made, set_of(to)))
        continue;
      if (root != Layout::kNhwcBf16 && from == Layout::kNhwcBf16) continue;
      const Ticks rest = search(changes, root, made | set_of(to), wanted);
      if (rest != pbqp::kForbidden) best = std::min(best, rest + hop.cost.ticks);
    }
  }
  return best;
}

}  // namespace

TEST(CheapestTree, EqualsExhaustiveSearch) {
  std::mt19937_64 random(3);
  const Candidate some;
  for (int round = 0; round < 40; ++round) {
    LayoutChanges changes;
    for (auto& row : changes.direct) {
      for (PricedCandidate& hop : row) {
        if (random() % 3 > 0) hop = {&some, {static_cast<Ticks>(random() % 20)}};
      }
    }
    compute_tree_costs(changes);
    for (const Layout root : kAllLayouts) {
      for (int set = 0; set < kLayoutSetCount; ++set) {
        const Ticks cost = changes.tree_cost[index_of(root)][set];
        ASSERT_EQ(cost, search(changes, root, set_of(root), set));
        if (cost == pbqp::kForbidden) continue;
        LayoutSet made = set_of(root);
        Ticks sum = 0;
        for (const Hop& hop : cheapest_tree(changes, root, set)) {
          EXPECT_TRUE(includes(made, set_of(hop.from)) && !includes(made, set_of(hop.to)));
          made |= set_of(hop.to);
          sum += changes.direct[index_of(hop.from)][index_of(hop.to)].cost.ticks;
        }
        EXPECT_TRUE(includes(made, set));
        EXPECT_EQ(sum, cost);
      }
    }
  }
}

TEST(CheapestTree, MakesNothingThatIsNotWantedWhereHopsAreFree) {
  const Candidate some;
  LayoutChanges changes;
  for (auto& row : changes.direct) row.fill({&some, {0}});
  compute_tree_costs(changes);
  EXPECT_TRUE(cheapest_tree(changes, Layout::kNhwc, set_of(Layout::kNhwc)).empty());
  EXPECT_EQ(cheapest_tree(changes, Layout::kNhwc, set_of(Layout::kNchw)),
            (std::vector<Hop>{{Layout::kNhwc, Layout::kNchw}}));
}

TEST(CheapestTree, NeverRoundsAValueForReadersInItsOwnType) {
  const Candidate some;
  LayoutChanges changes;
  const auto set_cost = [&](Layout from, Layout to, Ticks ticks) {
    changes.direct[index_of(from)][index_of(to)] = {&some, {ticks}};
  };
  set_cost(Layout::kNhwc, Layout::kNhwcBf16, 1);
  set_cost(Layout::kNhwcBf16, Layout::kNChw16c, 1);
  set_cost(Layout::kNhwc, Layout::kNChw16c, 10);
  compute_tree_costs(changes);
  const LayoutSet both = set_of(Layout::kNhwcBf16) | set_of(Layout::kNChw16c);
  EXPECT_EQ(changes.tree_cost[index_of(Layout::kNhwc)][set_of(Layout::kNChw16c)], 10);
  EXPECT_EQ(changes.tree_cost[index_of(Layout::kNhwc)][both], 11);
  EXPECT_EQ(changes.tree_cost[index_of(Layout::kNhwcBf16)][set_of(Layout::kNChw16c)], 1);
}

}  // namespace torchalgo::planner

namespace torchalgo::planner_test {
namespace {

std::vector<Primitive> copy(const Problem& problem) {
  const auto& change = std::get<TransformProblem>(problem);
  return {{"test.b", change.from, change.to, 0}, {"test.a", change.from, change.to, 0}};
}

std::vector<std::string> spell(const std::vector<Candidate>& transforms) {
  std::vector<std::string> texts;
  for (const Candidate& t : transforms) {
    texts.push_back(to_string(t.problem) + " " + t.primitive.name);
  }
  return texts;
}

}  // namespace

TEST(TransformCandidates, ListThePairsThatOccurAtEachShapeOnceAndSorted) {
  FlowBuilder flow;
  flow.output(flow.relu(flow.conv(flow.conv(flow.input(8), 8), 16)));
  const Graph graph = flow.graph();
  const Candidates candidates{{{candidate(graph, {0}, "test.a", Layout::kNchw, Layout::kNhwc)},
                               {candidate(graph, {1}, "test.a", Layout::kNchw, Layout::kNchw),
                                candidate(graph, {1, 2}, "test.a", Layout::kNchw, Layout::kNchw)},
                               {candidate(graph, {2}, "test.a", Layout::kNchw, Layout::kNchw)}},
                              {{}, {}, {}}};
  // 16 channels only occur in nchw.
  EXPECT_EQ(
      spell(transform_candidates(graph, candidates, copy)),
      (std::vector<std::string>{
          "transform_f32_n1c8h4w4_nchw_nhwc test.a", "transform_f32_n1c8h4w4_nchw_nhwc test.b",
          "transform_f32_n1c8h4w4_nhwc_nchw test.a", "transform_f32_n1c8h4w4_nhwc_nchw test.b"}));
}

TEST(TransformCandidates, CountTheLayoutsOfResidualsAndBorders) {
  FlowBuilder flow;
  const int src = flow.input(8, Layout::kNhwc);
  flow.output(flow.add(flow.conv(src, 8), src));
  const Graph graph = flow.graph();
  const Candidates candidates{
      {{candidate(graph, {0, 1}, "test.a", Layout::kNhwc, Layout::kNChw16c)}, {}}, {{}, {}}};
  // The input occurs in nhwc and, as the residual, in nChw16c; the result in nChw16c and nchw.
  EXPECT_EQ(spell(transform_candidates(graph, candidates, copy)),
            (std::vector<std::string>{"transform_f32_n1c8h4w4_nChw16c_nchw test.a",
                                      "transform_f32_n1c8h4w4_nChw16c_nchw test.b",
                                      "transform_f32_n1c8h4w4_nChw16c_nhwc test.a",
                                      "transform_f32_n1c8h4w4_nChw16c_nhwc test.b",
                                      "transform_f32_n1c8h4w4_nchw_nChw16c test.a",
                                      "transform_f32_n1c8h4w4_nchw_nChw16c test.b",
                                      "transform_f32_n1c8h4w4_nhwc_nChw16c test.a",
                                      "transform_f32_n1c8h4w4_nhwc_nChw16c test.b"}));
}

TEST(TransformCandidates, SpellOneAndThreeDimensionalValues) {
  for (const auto& [sizes, text] :
       {std::pair(std::vector<std::int64_t>{2, 8, 5}, "transform_f32_n2c8h1w5_nchw_nhwc"),
        std::pair(std::vector<std::int64_t>{2, 8, 3, 4, 5},
                  "transform_f32_n2c8d3h4w5_nchw_nhwc")}) {
    FlowBuilder flow;
    flow.output(flow.opaque({flow.input(8, Layout::kNhwc)}, 8));
    Graph graph = flow.graph();
    graph.values[0].sizes = sizes;
    const std::vector<Candidate> transforms = transform_candidates(graph, {{{}}, {{}}}, copy);
    ASSERT_EQ(transforms.size(), 4U);
    EXPECT_EQ(to_string(transforms[0].problem), text);
  }
}

}  // namespace torchalgo::planner_test

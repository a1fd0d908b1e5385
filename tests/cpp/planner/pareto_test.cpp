// SPDX-License-Identifier: BSD-3-Clause
#include "planner/pareto.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "planner/brute_force.h"
#include "planner/sample.h"

namespace torchalgo::planner_test {
namespace {

using Front = std::vector<std::pair<Ticks, std::int64_t>>;  // cost, use

std::int64_t pick(std::mt19937_64& random, std::int64_t count) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
}

Sample sample_with_workspaces(std::mt19937_64& random) {
  Sample sample = random_sample(random, {.nodes = 5, .extra_candidates = 3});
  for (auto& list : sample.candidates.by_anchor) {
    for (Candidate& c : list) c.primitive.workspace_bytes = 64 * pick(random, 5);
  }
  for (Candidate& c : sample.transforms) c.primitive.workspace_bytes = 64 * pick(random, 3);
  return sample;
}

Resource random_resource(std::mt19937_64& random, const Sample& sample) {
  Resource resource{"weight bytes", {}, 0};
  for (const auto& list : sample.candidates.by_anchor) {
    resource.use.emplace_back();
    for (std::size_t i = 0; i < list.size(); ++i) resource.use.back().push_back(pick(random, 5));
    for (const auto& use : resource.use) {
      if (!use.empty()) resource.limit += *std::max_element(use.begin(), use.end());
    }
  }
  return resource;
}

// Of (cost, use) in order of falling use limits, those that are not dominated; cheapest first.
Front undominated(Front points) {
  std::sort(points.begin(), points.end());
  Front front;
  for (const auto& point : points) {
    if (front.empty() || point.second < front.back().second) front.push_back(point);
  }
  return front;
}

Front front_by_workspace(const Sample& sample) {
  std::set<std::int64_t> peaks;
  const auto collect = [&](const Candidate& c) { peaks.insert(c.primitive.workspace_bytes); };
  for (const auto& list : sample.candidates.by_anchor)
    std::for_each(list.begin(), list.end(), collect);
  std::for_each(sample.transforms.begin(), sample.transforms.end(), collect);
  Front points;
  for (const std::int64_t peak : peaks) {
    const auto is_small = [&](const Candidate& c) { return c.primitive.workspace_bytes <= peak; };
    Sample small = sample;
    std::erase_if(small.transforms, [&](const Candidate& c) { return !is_small(c); });
    if (const auto cost = least_cost(small, is_small)) points.emplace_back(*cost, peak);
  }
  return undominated(std::move(points));
}

std::int64_t use_of(const Sample& sample, const Resource& resource, const Candidate& c) {
  const auto& list = sample.candidates.by_anchor[c.covers.front()];
  return resource.use[c.covers.front()][&c - list.data()];
}

Front front_by_resource(const Sample& sample, const Resource& resource) {
  const auto use = [&](const Candidate& c) { return Amounts{use_of(sample, resource, c), 0}; };
  Front points;
  for (std::int64_t limit = 0; limit <= resource.limit; ++limit) {
    if (const auto cost = least_cost_within(sample, use, {limit, 0}))
      points.emplace_back(*cost, limit);
    if (limit > 30) break;  // more than 5 nodes of at most 4
  }
  return undominated(std::move(points));
}

Front as_front(const Sample& sample, const std::vector<FrontPoint>& points) {
  Front front;
  for (const FrontPoint& point : points) {
    std::string why;
    EXPECT_EQ(point.plan.status, PlanStatus::kOptimal);
    EXPECT_EQ(replay(sample, point.plan, why), point.plan.cost) << why << describe(sample);
    front.emplace_back(point.plan.cost, point.use);
  }
  return front;
}

}  // namespace

TEST(WorkspaceFront, EqualsBruteForceOnRandomDataFlows) {
  std::mt19937_64 random(21);
  int points = 0;
  for (int round = 0; round < 1000; ++round) {
    const Sample sample = sample_with_workspaces(random);
    const Front truth = front_by_workspace(sample);
    if (truth.empty()) continue;
    const Front front = as_front(
        sample, workspace_front(sample.graph, sample.candidates, sample.transforms, sample.costs));
    ASSERT_EQ(front, truth) << describe(sample);
    points += static_cast<int>(front.size());
  }
  EXPECT_GT(points, 1500);
}

TEST(ResourceFront, EqualsBruteForceOnRandomDataFlows) {
  std::mt19937_64 random(22);
  int points = 0;
  for (int round = 0; round < 1000; ++round) {
    const Sample sample = random_sample(random, {.nodes = 5, .extra_candidates = 3});
    const Resource resource = random_resource(random, sample);
    const Front truth = front_by_resource(sample, resource);
    if (truth.empty()) continue;
    PlanOptions options;
    options.resources = {resource};
    const Front front =
        as_front(sample, resource_front(sample.graph, sample.candidates, sample.transforms,
                                        sample.costs, options, 100));
    ASSERT_EQ(front, truth) << describe(sample);
    points += static_cast<int>(front.size());
    const Front few = as_front(sample, resource_front(sample.graph, sample.candidates,
                                                      sample.transforms, sample.costs, options, 2));
    ASSERT_EQ(few.size(), std::min<std::size_t>(2, truth.size())) << describe(sample);
    ASSERT_EQ(few.front(), truth.front());
    ASSERT_EQ(few.back(), truth.back());
  }
  EXPECT_GT(points, 2000);
}

TEST(MakePlan, KeepsToALimitedResourceAndSaysWhatItNeedsAtLeast) {
  FlowBuilder flow;
  flow.output(flow.conv(flow.conv(flow.input(8), 8), 8));
  Sample sample{flow.graph(), {}, {}, {}};
  sample.candidates.refusals.resize(2);
  for (int n = 0; n < 2; ++n) {
    sample.candidates.by_anchor.push_back(
        {candidate(sample.graph, {n}, "test.a", Layout::kNchw, Layout::kNchw),
         candidate(sample.graph, {n}, "test.b", Layout::kNchw, Layout::kNchw)});
  }
  Ticks next = 0;
  add_transforms_and_costs(sample, [&] { return next += 10; });  // a 10, b 20
  PlanOptions options;
  options.resources = {{"weight bytes", {{7, 3}, {9, 4}}, 12}};
  const PlanResult result =
      make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs, options);
  EXPECT_EQ(result.plan.cost, 30);
  ASSERT_EQ(result.use.size(), 1);
  EXPECT_LE(result.use[0], 12);
  EXPECT_EQ(result.plan.status, PlanStatus::kOptimal);
  options.resources[0].limit = 6;
  try {
    (void)make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs, options);
    FAIL() << "a plan of at most 6";
  } catch (const NoPlan& error) {
    EXPECT_EQ(std::string(error.what()),
              "TA2301 make_plan: weight bytes of at most 6 cannot be kept: the allowed candidates "
              "need at "
              "least 7 (conv_00001 4, conv_00000 3); raise the limit or allow more candidates");
    EXPECT_EQ(error.least_use, 7);
  }
  options.resources[0].use.pop_back();
  EXPECT_THROW(
      (void)make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs, options),
      Error);
}

TEST(MakePlan, EqualsBruteForceWithinTwoLimits) {
  std::mt19937_64 random(23);
  int found = 0, binding = 0, scarce_together = 0;
  for (int round = 0; round < 2000; ++round) {
    const Sample sample = random_sample(random, {.nodes = 5, .extra_candidates = 3});
    PlanOptions options;
    options.resources = {random_resource(random, sample), random_resource(random, sample)};
    for (Resource& resource : options.resources) resource.limit = pick(random, 12);
    const auto& [first, second] = std::tie(options.resources[0], options.resources[1]);
    const auto use = [&](const Candidate& c) {
      return Amounts{use_of(sample, first, c), use_of(sample, second, c)};
    };
    const auto truth = least_cost_within(sample, use, {first.limit, second.limit});
    try {
      const PlanResult result =
          make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs, options);
      ASSERT_EQ(truth, result.plan.cost) << describe(sample);
      ASSERT_EQ(result.plan.status, PlanStatus::kOptimal) << describe(sample);
      ASSERT_EQ(result.plan.lower_bound, result.plan.cost) << describe(sample);
      ASSERT_EQ(result.use.size(), 2);
      ASSERT_LE(result.use[0], first.limit);
      ASSERT_LE(result.use[1], second.limit);
      std::string why;
      ASSERT_EQ(replay(sample, result.plan, why), result.plan.cost) << why << describe(sample);
      ++found;
      binding += result.plan.cost > least_cost(sample).value();
    } catch (const NoPlan& error) {
      ASSERT_FALSE(truth.has_value()) << error.what() << describe(sample);
      scarce_together += std::string(error.what()).find("together with") != std::string::npos;
    }
  }
  EXPECT_GT(found, 300);
  EXPECT_GT(binding, 100);
  EXPECT_GT(scarce_together, 30);
}

TEST(MakePlan, ALimitThatDoesNotBindLeavesTheProofAndTheRegrets) {
  std::mt19937_64 random(24);
  const Sample sample = random_sample(random, {.nodes = 5, .extra_candidates = 3});
  PlanOptions options;
  options.with_regrets = options.with_certificate = true;
  const PlanResult free =
      make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs, options);
  options.resources = {random_resource(random, sample)};  // its limit is the sum of the largest
  PlanResult limited =
      make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs, options);
  EXPECT_EQ(limited.plan, free.plan);
  EXPECT_FALSE(limited.plan.certificate.empty());
  options.resources[0].limit = limited.use[0] - 1;
  ASSERT_GE(options.resources[0].limit, 0);
  try {
    limited = make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs, options);
    EXPECT_TRUE(limited.plan.certificate.empty());
    EXPECT_LT(limited.use[0], options.resources[0].limit + 1);
  } catch (const NoPlan& error) {
    EXPECT_EQ(error.least_use, options.resources[0].limit + 1);
  }
}

TEST(MakePlan, SaysWhichNodeNeedsMoreWorkspace) {
  FlowBuilder flow;
  flow.output(flow.conv(flow.input(8), 8));
  Sample sample{flow.graph(), {}, {}, {}};
  sample.candidates = {{{candidate(sample.graph, {0}, "test.a", Layout::kNchw, Layout::kNchw)}},
                       {{}}};
  sample.candidates.by_anchor[0][0].primitive.workspace_bytes = 100;
  add_transforms_and_costs(sample, [] { return 1; });
  PlanOptions options;
  options.workspace_limit_bytes = 99;
  try {
    (void)make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs, options);
    FAIL() << "a plan in 99 bytes";
  } catch (const NoPlan& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "TA2301 conv_00000: no candidate is allowed; supported: test.a; the least workspace is 100 "
        "bytes, the limit 99");
  }
}

}  // namespace torchalgo::planner_test

// SPDX-License-Identifier: BSD-3-Clause
#include "planner/constrained_solve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "pbqp/text.h"

namespace torchalgo::planner {
namespace {

using pbqp::kForbidden;

std::int64_t pick(std::mt19937_64& random, std::int64_t count) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
}

struct Case {
  pbqp::Problem problem;
  Constraints constraints;
};

Case random_case(std::mt19937_64& random, int nodes, int values, std::int64_t largest,
                 std::size_t resources = 1) {
  Case c;
  for (int i = 0; i < nodes; ++i) {
    c.problem.node_costs.emplace_back();
    c.constraints.use.emplace_back();
    const std::int64_t unit = pick(random, 3);  // nodes without any use are many: set variables
    for (std::int64_t a = 1 + pick(random, values); a > 0; --a) {
      const std::int64_t use = pick(random, 6);
      c.constraints.use.back().push_back({use * unit, resources > 1 ? pick(random, 6) * unit : 0});
      c.problem.node_costs.back().push_back(pick(random, largest) + (6 - use) * largest / 6);
    }
  }
  for (int u = 0; u < nodes; ++u) {
    for (int v = u + 1; v < nodes; ++v) {
      if (pick(random, 5) < 3) continue;
      pbqp::Edge edge{u, v, {}};
      const std::size_t cells = c.problem.node_costs[u].size() * c.problem.node_costs[v].size();
      for (std::size_t i = 0; i < cells; ++i)
        edge.matrix.push_back(pick(random, 8) == 0 ? kForbidden : pick(random, largest));
      c.problem.edges.push_back(std::move(edge));
    }
  }
  c.constraints.limit = {pick(random, 5 * nodes), resources > 1 ? pick(random, 5 * nodes) : 0};
  return c;
}

ResourceUse use_of(const Constraints& constraints, const std::vector<int>& choice) {
  ResourceUse sum = {};
  for (std::size_t i = 0; i < choice.size(); ++i) sum = sum + constraints.use[i][choice[i]];
  return sum;
}

struct Truth {
  pbqp::Cost cost = kForbidden;                      // within the limits
  ResourceUse least_use = {kForbidden, kForbidden};  // of any choice, each by itself
};

Truth enumerate(const Case& c) {
  Truth truth;
  std::vector<int> choice(c.problem.node_costs.size(), 0);
  for (bool is_done = false; !is_done;) {
    const pbqp::Cost cost = pbqp::evaluate(c.problem, choice);
    const ResourceUse use = use_of(c.constraints, choice);
    for (std::size_t r = 0; r < use.size() && cost != kForbidden; ++r)
      truth.least_use[r] = std::min(truth.least_use[r], use[r]);
    if (is_within(use, c.constraints.limit)) truth.cost = std::min(truth.cost, cost);
    is_done = true;
    for (std::size_t i = 0; i < choice.size() && is_done; ++i) {
      is_done = ++choice[i] == static_cast<int>(c.problem.node_costs[i].size());
      if (is_done) choice[i] = 0;
    }
  }
  return truth;
}

std::string describe(const Case& c) {
  const auto spell = [](const ResourceUse& use) {
    return " " + std::to_string(use[0]) + "," + std::to_string(use[1]);
  };
  std::string text = "limit" + spell(c.constraints.limit) + "\n";
  for (const auto& uses : c.constraints.use) {
    text += "use";
    for (const ResourceUse& use : uses) text += spell(use);
    text += "\n";
  }
  return text + pbqp::to_text(c.problem);
}

void expect_truth(const Case& c, std::int64_t label_cap) {
  const Truth truth = enumerate(c);
  const ConstrainedSolution found = solve_constrained(c.problem, c.constraints, 10, label_cap);
  EXPECT_EQ(found.solution.lower_bound, truth.cost) << describe(c);
  if (truth.cost == kForbidden) {
    EXPECT_EQ(found.solution.status, pbqp::Status::kInfeasible) << describe(c);
    const bool has_choice = truth.least_use[0] != kForbidden;
    const bool is_scarce = has_choice && !is_within(truth.least_use, c.constraints.limit);
    ASSERT_EQ(found.least_use_choice.empty(), !is_scarce) << describe(c);
    if (is_scarce) {
      const std::int64_t least =
          use_of(c.constraints, found.least_use_choice)[found.infeasible_resource];
      EXPECT_EQ(least, truth.least_use[found.infeasible_resource]) << describe(c);
      EXPECT_GT(least, c.constraints.limit[found.infeasible_resource]) << describe(c);
    }
    return;
  }
  ASSERT_EQ(found.solution.status, pbqp::Status::kOptimal) << describe(c);
  EXPECT_EQ(found.solution.cost, truth.cost) << describe(c);
  EXPECT_EQ(pbqp::evaluate(c.problem, found.solution.choice), truth.cost) << describe(c);
  EXPECT_EQ(use_of(c.constraints, found.solution.choice), found.use) << describe(c);
  EXPECT_TRUE(is_within(found.use, c.constraints.limit)) << describe(c);
}

}  // namespace

TEST(SolveConstrained, EqualsBruteForceOnRandomProblems) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 1500; ++round) {
    const std::int64_t largest = round % 3 == 0 ? 5 : round % 3 == 1 ? 100 : 3'000'000'000;
    expect_truth(random_case(random, 2 + round % 5, 4, largest), 3'000'000);
    if (HasFailure()) return;
  }
}

TEST(SolveConstrained, EqualsBruteForceWithoutPairs) {
  std::mt19937_64 random(12);
  int splits = 0;
  for (int round = 0; round < 1000; ++round) {
    const Case c = random_case(random, 3 + round % 4, 4, 100);
    expect_truth(c, 0);
    const auto method = solve_constrained(c.problem, c.constraints, 10, 0).solution.method;
    splits += method.find("branch") != method.npos;
    if (HasFailure()) return;
  }
  EXPECT_GT(splits, 30);
}

TEST(SolveConstrained, EqualsBruteForceWithTwoResources) {
  std::mt19937_64 random(14);
  for (int round = 0; round < 3000; ++round) {
    const std::int64_t largest = round % 3 == 0 ? 5 : round % 3 == 1 ? 100 : 3'000'000'000;
    const std::int64_t label_cap = round % 2 == 0 ? 3'000'000 : 0;
    expect_truth(random_case(random, 2 + round % 5, 4, largest, 2), label_cap);
    if (HasFailure()) return;
  }
}

// ResourceUse in bytes and costs in ticks of a real network: nothing may overflow.
TEST(SolveConstrained, EqualsBruteForceWithLargeNumbers) {
  std::mt19937_64 random(15);
  for (int round = 0; round < 300; ++round) {
    Case c = random_case(random, 5, 4, 3'000'000'000'000, 2);
    for (auto& uses : c.constraints.use) {
      for (ResourceUse& use : uses) use = {use[0] * 37'000'001, use[1] * 91'000'003};
    }
    c.constraints.limit = {c.constraints.limit[0] * 37'000'000,
                           c.constraints.limit[1] * 91'000'000};
    expect_truth(c, round % 2 == 0 ? 3'000'000 : 0);
    if (HasFailure()) return;
  }
}

TEST(SolveConstrained, GivesABoundWhateverTheTime) {
  std::mt19937_64 random(13);
  for (int round = 0; round < 200; ++round) {
    const Case c = random_case(random, 6, 4, 1000);
    const Truth truth = enumerate(c);
    for (const double limit_s : {0.0, 1e-5, 1e-4}) {
      const ConstrainedSolution found = solve_constrained(c.problem, c.constraints, limit_s, 0);
      EXPECT_LE(found.solution.lower_bound, truth.cost) << describe(c);
      if (found.solution.choice.empty()) continue;
      EXPECT_GE(found.solution.cost, truth.cost) << describe(c);
      EXPECT_TRUE(is_within(found.use, c.constraints.limit)) << describe(c);
    }
  }
}

}  // namespace torchalgo::planner

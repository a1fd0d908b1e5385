// SPDX-License-Identifier: BSD-3-Clause
#include "planner/limited.h"

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
  Budget budget;
};

Case random_case(std::mt19937_64& random, int nodes, int values, std::int64_t largest) {
  Case c;
  for (int i = 0; i < nodes; ++i) {
    c.problem.node_costs.emplace_back();
    c.budget.use.emplace_back();
    const std::int64_t unit = pick(random, 3);  // nodes without any use are many: set variables
    for (std::int64_t a = 1 + pick(random, values); a > 0; --a) {
      const std::int64_t use = pick(random, 6);
      c.budget.use.back().push_back(use * unit);
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
  c.budget.limit = pick(random, 5 * nodes);
  return c;
}

std::int64_t use_of(const Budget& budget, const std::vector<int>& choice) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < choice.size(); ++i) sum += budget.use[i][choice[i]];
  return sum;
}

struct Truth {
  pbqp::Cost cost = kForbidden;         // within the limit
  std::int64_t least_use = kForbidden;  // of any choice
};

Truth enumerate(const Case& c) {
  Truth truth;
  std::vector<int> choice(c.problem.node_costs.size(), 0);
  for (bool is_done = false; !is_done;) {
    const pbqp::Cost cost = pbqp::evaluate(c.problem, choice);
    const std::int64_t use = use_of(c.budget, choice);
    if (cost != kForbidden) truth.least_use = std::min(truth.least_use, use);
    if (use <= c.budget.limit) truth.cost = std::min(truth.cost, cost);
    is_done = true;
    for (std::size_t i = 0; i < choice.size() && is_done; ++i) {
      is_done = ++choice[i] == static_cast<int>(c.problem.node_costs[i].size());
      if (is_done) choice[i] = 0;
    }
  }
  return truth;
}

std::string describe(const Case& c) {
  std::string text = "limit " + std::to_string(c.budget.limit) + "\n";
  for (const auto& uses : c.budget.use) {
    text += "use";
    for (const std::int64_t use : uses) text += " " + std::to_string(use);
    text += "\n";
  }
  return text + pbqp::to_text(c.problem);
}

void expect_truth(const Case& c, std::int64_t pair_cap) {
  const Truth truth = enumerate(c);
  const LimitedSolution found = solve_limited(c.problem, c.budget, 10, pair_cap);
  EXPECT_EQ(found.solution.lower_bound, truth.cost) << describe(c);
  if (truth.cost == kForbidden) {
    EXPECT_EQ(found.solution.status, pbqp::Status::kInfeasible) << describe(c);
    ASSERT_EQ(found.leanest.empty(), truth.least_use == kForbidden) << describe(c);
    if (!found.leanest.empty()) {
      EXPECT_EQ(use_of(c.budget, found.leanest), truth.least_use) << describe(c);
    }
    return;
  }
  ASSERT_EQ(found.solution.status, pbqp::Status::kOptimal) << describe(c);
  EXPECT_EQ(found.solution.cost, truth.cost) << describe(c);
  EXPECT_EQ(pbqp::evaluate(c.problem, found.solution.choice), truth.cost) << describe(c);
  EXPECT_EQ(use_of(c.budget, found.solution.choice), found.use) << describe(c);
  EXPECT_LE(found.use, c.budget.limit) << describe(c);
}

}  // namespace

TEST(SolveLimited, EqualsBruteForceOnRandomProblems) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 1500; ++round) {
    const std::int64_t largest = round % 3 == 0 ? 5 : round % 3 == 1 ? 100 : 3'000'000'000;
    expect_truth(random_case(random, 2 + round % 5, 4, largest), 3'000'000);
    if (HasFailure()) return;
  }
}

TEST(SolveLimited, EqualsBruteForceWithoutPairs) {
  std::mt19937_64 random(12);
  int splits = 0;
  for (int round = 0; round < 1000; ++round) {
    const Case c = random_case(random, 3 + round % 4, 4, 100);
    expect_truth(c, 0);
    const auto method = solve_limited(c.problem, c.budget, 10, 0).solution.method;
    splits += method.find("branch") != method.npos;
    if (HasFailure()) return;
  }
  EXPECT_GT(splits, 30);
}

TEST(SolveLimited, GivesABoundWhateverTheTime) {
  std::mt19937_64 random(13);
  for (int round = 0; round < 200; ++round) {
    const Case c = random_case(random, 6, 4, 1000);
    const Truth truth = enumerate(c);
    for (const double limit_s : {0.0, 1e-5, 1e-4}) {
      const LimitedSolution found = solve_limited(c.problem, c.budget, limit_s, 0);
      EXPECT_LE(found.solution.lower_bound, truth.cost) << describe(c);
      if (found.solution.choice.empty()) continue;
      EXPECT_GE(found.solution.cost, truth.cost) << describe(c);
      EXPECT_LE(found.use, c.budget.limit) << describe(c);
    }
  }
}

}  // namespace torchalgo::planner

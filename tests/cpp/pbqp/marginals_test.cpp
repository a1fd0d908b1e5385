// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/marginals.h"

#include <gtest/gtest.h>

#include <limits>

#include "pbqp/text.h"
#include "random_problem.h"

namespace torchalgo::pbqp {
namespace {

using Table = std::vector<std::vector<Cost>>;

Solution solve_with_marginals(const Problem& problem, std::int64_t table_cap) {
  SolveOptions options{table_cap, std::numeric_limits<double>::infinity()};
  options.with_marginals = true;
  return solve(problem, options);
}

/// The least cost with each value of each node, by trying every choice.
Table brute_marginals(const Problem& problem) {
  Table best;
  for (const auto& costs : problem.node_costs) best.emplace_back(costs.size(), kForbidden);
  std::vector<int> choice(best.size(), 0);
  for (;;) {
    const Cost cost = evaluate(problem, choice);
    for (std::size_t i = 0; i < choice.size(); ++i)
      best[i][choice[i]] = std::min(best[i][choice[i]], cost);
    std::size_t i = 0;
    while (i < choice.size() && ++choice[i] == static_cast<int>(best[i].size())) choice[i++] = 0;
    if (i == choice.size()) return best;
  }
}

void expect_sound(const Problem& problem, const Solution& solution, const Table& expected,
                  int& bounds) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    for (std::size_t a = 0; a < expected[i].size(); ++a) {
      const Marginal& marginal = solution.marginals[i][a];
      bounds += !marginal.is_exact;
      if (marginal.is_exact)
        EXPECT_EQ(marginal.cost, expected[i][a]) << i << " " << a << "\n" << to_text(problem);
      else
        EXPECT_LE(marginal.cost, expected[i][a]) << i << " " << a << "\n" << to_text(problem);
    }
}

TEST(Marginals, EqualBruteForceWhereTablesFit) {
  RandomProblem random(51);
  int bounds = 0;
  for (int i = 0; i < 10'000; ++i) {
    const Problem problem = random.small();
    if (problem.node_costs.empty()) continue;
    expect_sound(problem, solve_with_marginals(problem, 30'000'000), brute_marginals(problem),
                 bounds);
    if (HasFailure()) return;
  }
  EXPECT_EQ(bounds, 0);
}

TEST(Marginals, AreBoundsAndKnowTheRunnerUpWhereTablesDoNotFit) {
  RandomProblem random(52);
  int bounds = 0;
  for (int i = 0; i < 300; ++i) {
    const Problem problem = random.dense(5, 4, 40, random.below(3) * 15);
    const Table expected = brute_marginals(problem);
    const Solution solution = solve_with_marginals(problem, 0);
    expect_sound(problem, solution, expected, bounds);
    for (std::size_t n = 0; n < solution.choice.size(); ++n) {
      Cost runner_up = kForbidden, known = kForbidden;
      for (int a = 0; a < 4; ++a) {
        if (a == solution.choice[n]) continue;
        runner_up = std::min(runner_up, expected[n][a]);
        if (solution.marginals[n][a].is_exact)
          known = std::min(known, solution.marginals[n][a].cost);
      }
      EXPECT_EQ(known, runner_up) << to_text(problem);
      EXPECT_EQ(solution.is_fixed[n], runner_up > solution.cost) << to_text(problem);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(bounds, 500);
}

TEST(Marginals, AreSoundWithoutTimeAndOfSeveralParts) {
  RandomProblem random(53);
  int bounds = 0;
  for (int i = 0; i < 200; ++i) {
    Problem problem = random.dense(3, 3, 40, 10);
    Problem other = random.dense(3, 3, 40, 10);
    problem.node_costs.insert(problem.node_costs.end(), other.node_costs.begin(),
                              other.node_costs.end());
    for (Edge& edge : other.edges)
      problem.edges.push_back({edge.u + 3, edge.v + 3, std::move(edge.matrix)});
    SolveOptions options{0, 0.0};
    options.with_marginals = true;
    const Solution solution = solve(problem, options);
    expect_sound(problem, solution, brute_marginals(problem), bounds);
    int exact_bounds = 0;
    expect_sound(problem, solve_with_marginals(problem, 30'000'000), brute_marginals(problem),
                 exact_bounds);
    EXPECT_EQ(exact_bounds, 0);
    if (HasFailure()) return;
  }
  EXPECT_GT(bounds, 500);
}

TEST(Marginals, OfAHubWithManyReadersFollowFromOnePass) {
  RandomProblem random(54);
  Problem star;
  random.add_node(star, 6, 1000);
  for (int i = 1; i <= 5'000; ++i) {
    random.add_node(star, 4, 1000);
    random.add_edge(star, 0, i, 1000);
  }
  const Solution solution = solve_with_marginals(star, 30'000'000);
  for (int node : {0, 1, 2'500, 5'000})
    for (int a = 0; a < static_cast<int>(star.node_costs[node].size()); ++a) {
      Problem fixed = star;
      for (int b = 0; b < static_cast<int>(fixed.node_costs[node].size()); ++b)
        if (b != a) fixed.node_costs[node][b] = kForbidden;
      EXPECT_TRUE(solution.marginals[node][a].is_exact);
      EXPECT_EQ(solution.marginals[node][a].cost, solve(fixed).cost);
    }
}

}  // namespace
}  // namespace torchalgo::pbqp

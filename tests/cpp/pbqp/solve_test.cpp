// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/solve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "pbqp/eliminate.h"
#include "pbqp/text.h"
#include "random_problem.h"

namespace torchalgo::pbqp {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// Reductions, then bound and branching with at most `table_cap` cells, until it is proven.
SolveOptions with_tables(std::int64_t table_cap) { return {table_cap, kNoLimit}; }

void expect_proven(const Problem& problem, const Solution& solution, Cost optimum) {
  if (optimum == kForbidden) {
    EXPECT_EQ(solution.status, Status::kInfeasible) << to_text(problem);
    EXPECT_TRUE(solution.choice.empty()) << to_text(problem);
    return;
  }
  ASSERT_EQ(solution.status, Status::kOptimal) << solution.method << "\n" << to_text(problem);
  EXPECT_EQ(solution.cost, optimum) << solution.method << "\n" << to_text(problem);
  EXPECT_EQ(solution.lower_bound, optimum) << solution.method << "\n" << to_text(problem);
  EXPECT_EQ(evaluate(problem, solution.choice), solution.cost) << to_text(problem);
}

/// Whatever the limits, nothing may be claimed that is not so.
void expect_truthful(const Problem& problem, const Solution& solution, Cost optimum) {
  const std::string text = solution.method + "\n" + to_text(problem);
  EXPECT_LE(solution.lower_bound, optimum) << text;
  switch (solution.status) {
    case Status::kOptimal:
    case Status::kFeasible:
      EXPECT_EQ(evaluate(problem, solution.choice), solution.cost) << text;
      EXPECT_GE(solution.cost, optimum) << text;
      EXPECT_NE(solution.cost, kForbidden) << text;
      EXPECT_EQ(solution.status == Status::kOptimal, solution.cost == solution.lower_bound) << text;
      break;
    case Status::kInfeasible:
      EXPECT_EQ(optimum, kForbidden) << text;
      [[fallthrough]];
    case Status::kUnknown:
      EXPECT_TRUE(solution.choice.empty()) << text;
  }
}

Problem permuted(const Problem& problem, const std::vector<int>& order) {
  Problem result = problem;
  for (std::size_t i = 0; i < order.size(); ++i)
    result.node_costs[order[i]] = problem.node_costs[i];
  for (Edge& edge : result.edges) {
    edge.u = order[edge.u];
    edge.v = order[edge.v];
  }
  std::reverse(result.edges.begin(), result.edges.end());
  return result;
}

TEST(Solve, EqualsBruteForceOnRandomGraphs) {
  RandomProblem random(1);
  int infeasible = 0;
  for (int i = 0; i < 12'000; ++i) {
    const Problem problem = random.small();
    const Cost optimum = brute_force(problem);
    infeasible += optimum == kForbidden;
    expect_proven(problem, solve(problem), optimum);
    if (HasFailure()) return;
  }
  EXPECT_GT(infeasible, 100);  // else the generator misses a kind
}

TEST(Solve, EqualsBruteForceWithoutElimination) {
  RandomProblem random(2);
  int branched = 0;
  for (int i = 0; i < 4'000; ++i) {
    const Problem problem = random.small();
    const Solution solution = solve(problem, with_tables(0));
    branched += solution.method.starts_with("branch and bound");
    expect_proven(problem, solution, brute_force(problem));
    if (HasFailure()) return;
  }
  EXPECT_GT(branched, 10);
}

TEST(Solve, EqualsBruteForceWhenOnlyPrunedProblemsFitTheTables) {
  RandomProblem random(3);
  for (int i = 0; i < 1'500; ++i) {
    const Problem problem = random.dense(4 + random.below(3), 3 + random.below(2), 60,
                                         random.below(2) * random.below(60));
    const SolveOptions options = with_tables(20 + random.below(100));
    expect_proven(problem, solve(problem, options), brute_force(problem));
    if (HasFailure()) return;
  }
}

TEST(Solve, ClaimsNothingFalseWithoutTime) {
  RandomProblem random(4);
  SolveOptions options;
  options.table_cap = 0;
  int feasible = 0;
  for (double limit : {0.0, 1e-5, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    options.time_limit_s = limit;
    for (int i = 0; i < 500; ++i) {
      const Problem problem = random.dense(6, 4, 30, random.below(60));
      const Solution solution = solve(problem, options);
      feasible += solution.status == Status::kFeasible;
      expect_truthful(problem, solution, brute_force(problem));
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(feasible, 100);
}

TEST(Solve, FindsTheSameCostInAnyNodeOrder) {
  RandomProblem random(5);
  for (int i = 0; i < 60; ++i) {
    const Problem problem = random.grid(4, 5, 4, 1000);
    const Problem other = permuted(problem, random.permutation(20));
    const Solution expected = solve(problem);
    ASSERT_EQ(expected.status, Status::kOptimal);
    expect_proven(other, solve(other), expected.cost);
    expect_proven(other, solve(other, with_tables(0)), expected.cost);
  }
}

TEST(Solve, GivesTheSameAnswerEveryTime) {
  RandomProblem random(6);
  const SolveOptions options = with_tables(2000);
  for (int i = 0; i < 20; ++i) {
    const Problem problem = random.grid(5, 5, 4, 100);
    const Solution first = solve(problem, options), second = solve(problem, options);
    EXPECT_EQ(first.choice, second.choice);
    EXPECT_EQ(first.method, second.method);
  }
}

TEST(Solve, GivesTiesToTheLowestIndex) {
  const Problem single{{{3, 1, 1}}, {}};
  EXPECT_EQ(solve(single).choice, std::vector<int>{1});
  RandomProblem random(7);
  Problem zeros = random.grid(4, 4, 3, 0);
  EXPECT_EQ(solve(zeros).choice, std::vector<int>(16, 0));
}

TEST(Solve, SolvesTheEmptyProblem) {
  const Solution solution = solve({});
  EXPECT_EQ(solution.status, Status::kOptimal);
  EXPECT_EQ(solution.cost, 0);
  EXPECT_TRUE(solution.choice.empty());
}

TEST(Solve, ProvesInfeasibility) {
  EXPECT_EQ(solve({{{}}, {}}).status, Status::kInfeasible);
  EXPECT_EQ(solve({{{1}, {}}, {{0, 1, {}}}}).status, Status::kInfeasible);
  EXPECT_EQ(solve({{{kForbidden, kForbidden}}, {}}).status, Status::kInfeasible);
  // Four nodes, three colours, all different.
  Problem colours{std::vector<std::vector<Cost>>(4, {0, 0, 0}), {}};
  for (int u = 0; u < 4; ++u)
    for (int v = u + 1; v < 4; ++v)
      colours.edges.push_back({u, v, {kForbidden, 0, 0, 0, kForbidden, 0, 0, 0, kForbidden}});
  EXPECT_EQ(solve(colours).status, Status::kInfeasible);
  EXPECT_EQ(solve(colours, with_tables(0)).status, Status::kInfeasible);
}

TEST(Solve, KeepsCostsThatNeedAll63Bits) {
  RandomProblem random(8);
  for (int i = 0; i < 300; ++i) {
    Problem problem = random.dense(5, 3, 15, 20);
    for (auto& costs : problem.node_costs)
      for (Cost& cost : costs) cost <<= 53;
    for (Edge& edge : problem.edges)
      for (Cost& cost : edge.matrix)
        if (cost != kForbidden) cost <<= 55;
    expect_proven(problem, solve(problem), brute_force(problem));
    expect_proven(problem, solve(problem, with_tables(0)), brute_force(problem));
    if (HasFailure()) return;
  }
}

/// The optimum of nodes 0 - 1 - 2 - ... by forward dynamic programming.
Cost chain_optimum(const Problem& chain) {
  std::vector<Cost> best = chain.node_costs[0];
  for (std::size_t i = 1; i < chain.node_costs.size(); ++i) {
    std::vector<Cost> next(chain.node_costs[i].size(), kForbidden);
    for (std::size_t b = 0; b < next.size(); ++b)
      for (std::size_t a = 0; a < best.size(); ++a)
        next[b] = std::min(next[b], best[a] + chain.edges[i - 1].matrix[a * next.size() + b] +
                                        chain.node_costs[i][b]);
    best = next;
  }
  return *std::min_element(best.begin(), best.end());
}

TEST(Solve, ProvesChainsOfTenThousandNodes) {
  RandomProblem random(9);
  Problem chain;
  for (int i = 0; i < 10'000; ++i) random.add_node(chain, 6, 1'000'000);
  for (int i = 0; i + 1 < 10'000; ++i) random.add_edge(chain, i, i + 1, 1'000'000);
  const Solution solution = solve(chain);
  EXPECT_EQ(solution.method, "R0-R2 reductions");
  EXPECT_EQ(solution.status, Status::kOptimal);
  EXPECT_EQ(solution.cost, chain_optimum(chain));
}

TEST(Solve, ProvesAHubWithTenThousandReaders) {
  RandomProblem random(10);
  Problem star;
  random.add_node(star, 6, 1000);
  for (int i = 1; i <= 10'000; ++i) {
    random.add_node(star, 4, 1000);
    random.add_edge(star, i % 2 ? i : 0, i % 2 ? 0 : i, 1000);
  }
  const Solution solution = solve(star);
  EXPECT_EQ(solution.status, Status::kOptimal);
  EXPECT_EQ(solution.cost, evaluate(star, solution.choice));
}

TEST(Solve, ProvesGridsOfModerateWidthByElimination) {
  RandomProblem random(11);
  const Problem grid = random.grid(6, 40, 5, 1000);
  const Solution solution = solve(grid);
  EXPECT_EQ(solution.status, Status::kOptimal);
  EXPECT_TRUE(solution.method.starts_with("elimination (width ")) << solution.method;
}

TEST(Solve, ReachesTheSameCostByBoundAndPruning) {
  RandomProblem random(11);
  const Problem grid = random.grid(5, 20, 4, 1000);
  const Solution exact = solve(grid), pruned = solve(grid, with_tables(2'000));
  EXPECT_TRUE(exact.method.starts_with("elimination")) << exact.method;
  EXPECT_EQ(pruned.status, Status::kOptimal) << pruned.method;
  EXPECT_EQ(pruned.cost, exact.cost) << pruned.method;
  EXPECT_FALSE(pruned.method.starts_with("elimination")) << pruned.method;
}

TEST(Solve, BoundsWhatItCannotProveInTime) {
  RandomProblem random(12);
  const Problem problem = random.dense(40, 12, 10'000);
  SolveOptions options;
  options.time_limit_s = 0.2;
  const Solution solution = solve(problem, options);
  EXPECT_EQ(solution.status, Status::kFeasible);
  EXPECT_LT(solution.lower_bound, solution.cost);
  EXPECT_GT(solution.lower_bound, 0);
  EXPECT_EQ(evaluate(problem, solution.choice), solution.cost);
}

TEST(Solve, LearnsMoreAsTimePasses) {
  RandomProblem random(14);
  SolveOptions options{5'000, 0.3};
  options.with_transcript = true;
  const Solution solution = solve(random.dense(20, 8, 10'000), options);
  ASSERT_GE(solution.transcript.size(), 4u);
  for (std::size_t e = 1; e < solution.transcript.size(); ++e) {
    const Event &before = solution.transcript[e - 1], &after = solution.transcript[e];
    EXPECT_GE(after.seconds, before.seconds);
    EXPECT_GE(after.lower_bound, before.lower_bound);
    EXPECT_LE(after.cost, before.cost);
  }
  EXPECT_EQ(solution.transcript.back().lower_bound, solution.lower_bound);
  EXPECT_EQ(solution.transcript.back().cost, solution.cost);
  EXPECT_TRUE(solve({}).transcript.empty());
}

TEST(Solve, GivesUpInsideASingleElimination) {
  RandomProblem random(15);
  const Problem problem = random.dense(5, 31, 1'000'000);
  const Instance instance = make_instance(problem);
  const auto order = find_order(instance, 1'000'000'000);
  ASSERT_TRUE(order.has_value());
  EXPECT_FALSE(eliminate(instance, *order, Deadline(1e-4)).has_value());  // 29 million cells
  SolveOptions options;
  options.table_cap = 1'000'000'000;
  options.time_limit_s = 0.005;
  const Solution solution = solve(problem, options);
  EXPECT_GT(solution.lower_bound, 0);
  EXPECT_GE(solution.cost, solution.lower_bound);
  EXPECT_EQ(evaluate(problem, solution.choice), solution.cost);
}

TEST(Solve, SolvesPartsOnTheirOwn) {
  RandomProblem random(13);
  Problem problem;
  Cost optimum = 0;
  for (int part = 0; part < 6; ++part) {
    const Problem one = random.dense(5, 4, 50);
    optimum += brute_force(one);
    const int first = static_cast<int>(problem.node_costs.size());
    problem.node_costs.insert(problem.node_costs.end(), one.node_costs.begin(),
                              one.node_costs.end());
    for (Edge edge : one.edges) {
      edge.u += first;
      edge.v += first;
      problem.edges.push_back(edge);
    }
  }
  expect_proven(problem, solve(problem), optimum);
  expect_proven(problem, solve(problem, with_tables(0)), optimum);
}

TEST(Solve, AHardPartLeavesTimeForTheOthers) {
  RandomProblem random(91);
  Problem problem = random.dense(40, 6, 1'000);  // not to be proven within the limit
  const int first = static_cast<int>(problem.node_costs.size());
  const Problem other = random.dense(6, 4, 1'000);
  const Cost optimum = brute_force(other);
  problem.node_costs.insert(problem.node_costs.end(), other.node_costs.begin(),
                            other.node_costs.end());
  for (Edge edge : other.edges) {
    edge.u += first;
    edge.v += first;
    problem.edges.push_back(std::move(edge));
  }
  SolveOptions options{.table_cap = 100, .time_limit_s = 0.3};
  const Solution solution = solve(problem, options);
  ASSERT_EQ(solution.choice.size(), problem.node_costs.size());
  const std::vector<int> easy(solution.choice.begin() + first, solution.choice.end());
  EXPECT_EQ(evaluate(other, easy), optimum);
}

}  // namespace
}  // namespace torchalgo::pbqp

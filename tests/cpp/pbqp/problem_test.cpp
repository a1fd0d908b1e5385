// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/problem.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "pbqp/solve.h"

namespace torchalgo::pbqp {
namespace {

constexpr Cost kHalf = kForbidden / 2;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

void expect_refused(const Problem& problem, const std::string& words) {
  EXPECT_NE(error_of([&] { check_problem(problem); }).find(words), std::string::npos)
      << "got: " << error_of([&] { check_problem(problem); }) << "\nwanted: " << words;
  EXPECT_THROW((void)solve(problem), std::invalid_argument) << words;
}

TEST(CheckProblem, RefusesNegativeCostsAndNamesTheirPlace) {
  expect_refused({{{1, -2}}, {}}, "node 0 has the negative cost -2");
  expect_refused({{{1}, {1}}, {{0, 1, {-7}}}}, "edge 0 (nodes 0 and 1) has the negative cost -7");
}

TEST(CheckProblem, RefusesEdgesThatDoNotFitTheirNodes) {
  expect_refused({{{1}, {1}}, {{0, 2, {0}}}}, "joins a node that is not there");
  expect_refused({{{1}, {1}}, {{-1, 0, {0}}}}, "joins a node that is not there");
  expect_refused({{{1}, {1}}, {{1, 1, {0}}}}, "joins a node to itself");
  expect_refused({{{1, 2}, {1, 2, 3}}, {{0, 1, {0, 0, 0, 0, 0}}}}, "has 5 costs");
}

TEST(CheckProblem, RefusesSumsBeyond64Bits) {
  expect_refused({{{kHalf}, {kHalf}, {5}}, {}}, "node 2 has the cost 5");
  expect_refused({{{kHalf}, {1}}, {{0, 1, {kHalf + 1}}}}, "edge 0 (nodes 0 and 1)");
  expect_refused({{{kForbidden - 1, 0}, {1}}, {}}, "node 1 has the cost 1");
}

TEST(CheckProblem, AcceptsTheLargestSumThatFits) {
  const Problem problem{{{kHalf, kForbidden}, {kHalf - 1}}, {{0, 1, {1, kForbidden}}}};
  EXPECT_NO_THROW(check_problem(problem));
  const Solution solution = solve(problem);
  EXPECT_EQ(solution.status, Status::kOptimal);
  EXPECT_EQ(solution.cost, kForbidden - 1);
}

TEST(CheckProblem, AcceptsNodesWithoutAlternatives) {
  EXPECT_NO_THROW(check_problem({{{}, {1}}, {{0, 1, {}}}}));
}

TEST(Evaluate, AddsNodesAndEdges) {
  const Problem problem{{{1, 2}, {10, 20, 30}},
                        {{0, 1, {100, 200, 300, 400, 500, 600}}, {1, 0, {1, 2, 3, 4, 5, 6}}}};
  EXPECT_EQ(evaluate(problem, {1, 2}), 2 + 30 + 600 + 6);
  EXPECT_EQ(evaluate(problem, {0, 1}), 1 + 20 + 200 + 3);
}

TEST(Evaluate, NeverSumsForbiddenEntries) {
  const Problem problem{{{kForbidden, 2}, {kForbidden, 3}}, {{0, 1, {5, 5, 5, kForbidden}}}};
  EXPECT_EQ(evaluate(problem, {0, 0}), kForbidden);
  EXPECT_EQ(evaluate(problem, {1, 1}), kForbidden);
  EXPECT_EQ(evaluate(problem, {0, 1}), kForbidden);
}

TEST(Evaluate, RefusesChoicesThatDoNotFit) {
  const Problem problem{{{1, 2}, {3}}, {}};
  EXPECT_THROW((void)evaluate(problem, {0}), std::invalid_argument);
  EXPECT_THROW((void)evaluate(problem, {2, 0}), std::invalid_argument);
  EXPECT_THROW((void)evaluate(problem, {0, -1}), std::invalid_argument);
  EXPECT_THROW((void)evaluate({{{kHalf}, {kHalf}, {kHalf}}, {}}, {0, 0, 0}), std::invalid_argument);
}

}  // namespace
}  // namespace torchalgo::pbqp

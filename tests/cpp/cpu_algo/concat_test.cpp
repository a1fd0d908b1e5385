// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

ConcatProblem make_problem(std::int64_t n, std::int64_t h, std::int64_t w,
                           std::vector<std::int64_t> c) {
  ConcatProblem problem;
  problem.n = n, problem.h = h, problem.w = w;
  problem.c = std::move(c);
  return problem;
}

TEST(Concat, CopiesWholeBlocksAndShiftsOthersExactly) {
  const std::vector<std::vector<std::int64_t>> channels = {
      {16, 32},           {16, 32, 5},   {17},      {1, 1},       {3, 16, 17},
      {17, 64, 1, 30},    {24, 24},      {8, 8},    {12, 64},     {64, 32, 32, 3},
      {5, 5, 5, 5, 5, 5}, {100, 28, 60}, {1, 1, 1}, {31, 1, 200}, {300, 20}};
  for (const auto& c : channels) {
    for (const std::int64_t n : {1, 2}) {
      expect_correct("cpu.concat", make_problem(n, 1, 1, c), 4, 0);
      expect_correct("cpu.concat", make_problem(n, 5, 7, c), 4, 0);
    }
  }
}

TEST(Concat, IsRightWhenSeveralThreadsShareIt) {
  expect_correct("cpu.concat", make_problem(2, 29, 31, {32, 16, 40}), 4, 0);
  expect_correct("cpu.concat", make_problem(2, 29, 31, {12, 64, 7}), 4, 0);
}

TEST(Concat, JoinsUpTo128Tensors) {
  expect_correct("cpu.concat", make_problem(1, 3, 3, std::vector<std::int64_t>(128, 3)), 4, 0);
  EXPECT_EQ(cpu_algorithm("cpu.concat")
                .offer(make_problem(1, 3, 3, std::vector<std::int64_t>(129, 3)), cpu_device())
                .refusal,
            "needs at most 128 tensors, got 129");
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/ones.h>

#include "base/error.h"
#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

TEST(ScaleShift, AgreesWithF64AndKeepsPadLanesZero) {
  const std::vector<Epilogue> epilogues = {{},
                                           {PostOp::kRelu},
                                           {PostOp::kRelu6},
                                           {PostOp::kHardswish},
                                           {PostOp::kSilu},
                                           {PostOp::kSigmoid},
                                           {PostOp::kHardsigmoid}};
  for (const Epilogue& epilogue : epilogues) {
    for (const std::int64_t c : {1, 3, 16, 17, 64, 100}) {
      // If a single channel's scale and shift cancel, little is left of what bf16 rounded.
      if (c == 1 && !epilogue.empty()) continue;
      for (const std::int64_t size : {1, 5}) {
        ScaleShiftProblem problem;
        problem.n = 2, problem.c = c, problem.h = size, problem.w = size + 1;
        problem.epilogue = epilogue;
        expect_correct("cpu.scale_shift", problem, 4, 1e-6);
      }
    }
  }
}

TEST(ScaleShift, AgreesWithF64OnMoreChannelsThanAreComputedAtATime) {
  ScaleShiftProblem problem;
  problem.n = 2, problem.c = 4111, problem.w = 2;
  for (const Epilogue& epilogue : {Epilogue{}, Epilogue{PostOp::kSilu}}) {
    problem.epilogue = epilogue;
    expect_correct("cpu.scale_shift", problem, 4, 1e-6);
  }
}

// The largest of many products of two normal numbers is rounded to bf16 by a tenth of the mean.
TEST(ScaleShift, IsRightWhereOneResultIsMuchLargerThanTheOthers) {
  for (const std::int64_t c : {384, 448}) {
    ScaleShiftProblem problem;
    problem.c = c, problem.h = problem.w = 28;
    problem.epilogue = {PostOp::kRelu};
    expect_correct("cpu.scale_shift", problem, 4, 1e-5);
  }
}

TEST(ScaleShift, IsRightWhenSeveralThreadsShareIt) {
  ScaleShiftProblem problem;
  problem.n = 2, problem.c = 41, problem.h = problem.w = 29;
  problem.epilogue = {PostOp::kSigmoid};
  expect_correct("cpu.scale_shift", problem, 4, 1e-6);
}

TEST(ScaleShift, RefusesOtherTypesAndThrowsOnTheWrongNumberOfScales) {
  ScaleShiftProblem problem;
  problem.c = 4;
  const Algorithm row = cpu_algorithm("cpu.scale_shift");
  const Primitive primitive = row.offer(problem, cpu_device()).primitives.at(0);
  const Kernel kernel = row.prepare(problem, primitive, cpu_device());
  EXPECT_THROW((void)kernel.pack({{at::ones({4}), at::ones({3})}}), Error);
  problem.dtype = DType::kF64;
  EXPECT_EQ(row.offer(problem, cpu_device()).refusal, "needs f32, got f64");
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/refusal.h"

#include <gtest/gtest.h>

#include <string>

namespace torchalgo::cudnn {
namespace {

TEST(NumericRefusal, AllowsNothingThatIsLessExactThanTheProblemsType) {
  using enum NumericalNote;
  const auto refusal = [](NumericalNote note, DType dtype) {
    return numeric_refusal({.numerical = {note}, .behavior = {}}, dtype).value_or("");
  };
  for (const DType dtype : {DType::kF32, DType::kTf32, DType::kF16, DType::kBf16}) {
    EXPECT_NE(refusal(kDownConvertInputs, dtype), "");
    EXPECT_NE(refusal(kReducedPrecisionReduction, dtype), "");
    EXPECT_EQ(refusal(kWinograd, dtype), "");
    EXPECT_EQ(refusal(kTensorCore, dtype).empty(), dtype != DType::kF32);
  }
}

TEST(SizeRefusal, CountsTheElementsOfEachTensor) {
  const auto refusal = [](const std::string& problem) {
    return size_refusal(std::get<ConvProblem>(parse_problem(problem))).value_or("");
  };
  EXPECT_EQ(refusal("fwd_f16_n63c64h1024w512_k8r1s1_st1x1_pad0x0_dil1x1_g1"), "");
  EXPECT_NE(refusal("fwd_f16_n64c64h1024w512_k8r1s1_st1x1_pad0x0_dil1x1_g1"), "");  // its source
  EXPECT_NE(refusal("fwd_f16_n64c8h1024w512_k64r1s1_st1x1_pad0x0_dil1x1_g1"), "");  // its result
}

}  // namespace
}  // namespace torchalgo::cudnn

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/bf16_models.h"

#include <gtest/gtest.h>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

using cpu::with_dtype;

constexpr const char* kProblems[] = {
    "fwd_bf16_n2c12h17w15_k20r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu",
    "fwd_bf16_n2c24h19w21_k24r3s3_st2x2_pad1x1_dil1x1_g24+bias+hardswish",
    "maxpool_bf16_n2c20h17w15_r3s3_st2x2_pad1x1_dil1x1",
    "add_bf16_n2c20h17w15+relu",
    "scaleshift_bf16_n2c20h17w15+silu",
    "concat_bf16_n2c12x3x16h9w8",
};

TEST(Bf16Models, RunTheKernelsOfNhwcBf16) {
  for (const char* text : kProblems) {
    const Problem problem = parse_problem(text);
    int served = 0;
    for (const Algorithm& row : prepared_algorithms()) {
      const Offer offer = row.offer(problem, device_with_bf16());
      for (const Primitive& primitive : offer.primitives) {
        EXPECT_EQ(primitive.src, Layout::kNhwc) << to_string(primitive);
        EXPECT_EQ(primitive.dst, Layout::kNhwc) << to_string(primitive);
        EXPECT_EQ(check_primitives({row}, problem, {primitive}, 1e-5)[0].failure, "")
            << to_string(primitive) << " " << text;
        ++served;
      }
    }
    EXPECT_GE(served, 1) << text;
  }
}

TEST(Bf16Models, NeedFastBf16AndPlanForNothingElse) {
  for (const char* text : kProblems) {
    for (const Algorithm& row : prepared_algorithms())
      EXPECT_NE(row.offer(parse_problem(text), Device()).refusal, "") << row.name << " " << text;
  }
}

TEST(WithDtype, ChangesTheTypeOfEveryLayer) {
  for (const char* text : kProblems) {
    const std::string in_f32 = to_string(with_dtype(parse_problem(text), DType::kF32));
    EXPECT_EQ(in_f32.find("bf16"), std::string::npos) << in_f32;
    EXPECT_EQ(to_string(with_dtype(parse_problem(in_f32), DType::kBf16)), text);
  }
  const Problem chain =
      parse_problem("chain_f32_n2c24h7w7_mul_k40r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu");
  EXPECT_EQ(dtype_of(with_dtype(chain, DType::kBf16)), DType::kBf16);
  EXPECT_EQ(with_dtype(with_dtype(chain, DType::kBf16), DType::kF32), chain);
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/backward_data.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "cpu_algo/list.h"
#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

// Each with the families that must run it.
const std::vector<std::pair<const char*, std::set<std::string>>> kProblems = {
    {"bwd_data_f32_n2c19h13w11_k37r3s3_st1x1_pad1x1_dil1x1_g1",
     {"cpu.winograd_f4x4_3x3", "cpu.winograd_f4x4_3x3_nhwc", "cpu.winograd_f2x2_3x3", "cpu.direct",
      "cpu.im2col_gemm"}},
    {"bwd_data_f32_n1c32h10w12_k64r3s3_st1x1_pad1x1_dil1x1_g2",
     {"cpu.winograd_f4x4_3x3", "cpu.direct"}},
    {"bwd_data_f32_n1c32h9w9_k16r1s1_st1x1_pad0x0_dil1x1_g1", {"cpu.conv1x1"}},
    {"bwd_data_f32_n1c32h10w12_k32r3s3_st1x1_pad1x1_dil1x1_g32", {"cpu.depthwise"}},
    {"bwd_data_f32_n1c24h10w12_k40r3s3_st1x1_pad0x0_dil2x2_g4", {"cpu.im2col_gemm"}},
    {"bwd_data_f32_n1c16h12w12_k24r1s7_st1x1_pad0x3_dil1x1_g1+bias", {"cpu.direct"}},
};

TEST(BackwardData, AgreesWithF64InEveryRowAndLayoutThatOffersIt) {
  for (const auto& [text, families] : kProblems) {
    const Problem problem = parse_problem(text);
    std::set<std::string> seen;
    for (const Algorithm& row : prepared_algorithms()) {
      const Offer offer = row.offer(problem, cpu_device());
      if (!offer.refusal.empty()) continue;
      seen.insert(std::string(row.name));
      for (const Primitive& primitive : offer.primitives) {
        expect_writes_inside(row, problem, primitive);
      }
      const auto results = check_primitives({row}, problem, offer.primitives, 1e-5);
      for (std::size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].failure, "") << to_string(offer.primitives[i]) << " " << text;
      }
    }
    for (const std::string& family : families) EXPECT_TRUE(seen.contains(family)) << family << text;
  }
}

TEST(BackwardData, ProblemsThatAreNoForwardConvolutionsAreRefusedInWords) {
  const auto refusal = [](const char* text) {
    return find_algorithm(prepared_algorithms(), "cpu.direct")
        ->offer(parse_problem(text), cpu_device())
        .refusal;
  };
  EXPECT_NE(refusal("bwd_data_f32_n1c16h12w12_k16r3s3_st1x1_pad3x3_dil1x1_g1").find("padding"),
            std::string::npos);
  for (const char* text : {"bwd_data_f32_n1c16h12w12_k16r3s3_st2x2_pad3x3_dil1x1_g1",
                           "bwd_data_f32_n1c16h12w12_k16r3s3_st2x2_pad2x2_dil2x2_g1",
                           "bwd_data_f32_n1c16h12w12_k16r1s1_st2x2_pad0x0_dil1x1_g1+bias"}) {
    EXPECT_NE(refusal(text).find("strided bwd_data"), std::string::npos) << text;
  }
}

TEST(BackwardData, IsTheForwardProblemOfTheSameSizes) {
  const auto conv =
      std::get<ConvProblem>(parse_problem("bwd_data_f32_n2c3h8w9_k5r3s5_st1x1_pad1x2_dil1x1_g1"));
  const auto twin = cpu::as_forward(conv);
  ASSERT_TRUE(twin.has_value());
  EXPECT_EQ(to_string(Problem(*twin)), "fwd_f32_n2c5h8w9_k3r3s5_st1x1_pad1x2_dil1x1_g1");
  EXPECT_EQ(result_sizes(*twin), result_sizes(conv));
}

}  // namespace
}  // namespace torchalgo

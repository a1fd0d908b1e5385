// SPDX-License-Identifier: BSD-3-Clause
#include "ir/fusion_and_chains.h"

#include <gtest/gtest.h>

#include <string>

namespace torchalgo {
namespace {

constexpr const char* kConv = "fwd_f32_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g1";
constexpr const char* kPointwise = "fwd_f32_n1c32h8w8_k32r1s1_st1x1_pad0x0_dil1x1_g1";
constexpr const char* kDepthwise = "fwd_f32_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g32";

// The call of both, or "-".
std::string fused(const std::string& before, const std::string& next) {
  const auto fusion = fuse(parse_problem(before), parse_problem(next));
  return fusion ? to_string(fusion->problem) : "-";
}

TEST(Fuse, AppendsAdditionAndActivationOnceAndInThisOrder) {
  const std::string conv = kConv, add = "add_f32_n1c32h8w8", relu = "relu_f32_n1c32h8w8";
  EXPECT_EQ(fused(conv, add), conv + "+add");
  EXPECT_EQ(fused(conv + "+add", relu), conv + "+add+relu");
  EXPECT_EQ(fused(conv, "leaky_relu0.1_f32_n1c32h8w8"), conv + "+leaky_relu0.1");
  EXPECT_EQ(fused(conv + "+relu", relu), "-");
  EXPECT_EQ(fused(conv + "+relu", add), "-");
  EXPECT_EQ(fused(conv + "+add", add), "-");
  EXPECT_EQ(fused("normalize_f32_n1c32h8w8_eps1e-05", add), "normalize_f32_n1c32h8w8_eps1e-05+add");
  EXPECT_EQ(fused("bwd_normalize_f32_n1c32h8w8_eps1e-05", add), "-");
  EXPECT_TRUE(fuse(parse_problem(conv), parse_problem(add))->adds_residual);
  EXPECT_FALSE(fuse(parse_problem(conv), parse_problem(relu))->adds_residual);
}

TEST(Fuse, AppendsActivationsToWhatComputesMoreThanOne) {
  const std::string relu = "relu_f32_n1c32h8w8";
  for (const std::string before :
       {"add_f32_n1c32h8w8", "mul_f32_n1c32h8w8", "scaleshift_f32_n1c32h8w8",
        "groupnorm_f32_n1c32h8w8_g8_eps1e-05", "normalize_f32_n1c32h8w8_eps1e-05"}) {
    EXPECT_EQ(fused(before, relu), before + "+relu");
  }
  for (const std::string before :
       {"relu_f32_n1c32h8w8", "bwd_relu_f32_n1c32h8w8", "moments_f32_n1c32h8w8",
        "concat_f32_n1c16x16h8w8", "maxpool_f32_n1c32h8w8_r3s3_st1x1_pad1x1_dil1x1",
        "pixelshuffle_f32_n1c128h4w4_x2"}) {
    EXPECT_EQ(fused(before, relu), "-") << before;
  }
}

TEST(Fuse, ChainsADepthwiseConvolutionWithItsNeighbours) {
  EXPECT_EQ(fused(kPointwise, kDepthwise).substr(0, 6), "chain_");
  EXPECT_EQ(fused(fused(kPointwise, kDepthwise), kPointwise).substr(0, 6), "chain_");
  EXPECT_EQ(fused(fused(fused(kPointwise, kDepthwise), kPointwise), kDepthwise), "-");
  EXPECT_EQ(fused(kConv, kPointwise), "-");
  EXPECT_EQ(fused(std::string(kPointwise) + "+add", kDepthwise), "-");
}

TEST(Fuse, ChainsAScaleOrAGlobalPoolingWithPointwiseConvolutions) {
  EXPECT_NE(fused("scaleshift_f32_n1c32h8w8+relu", kPointwise), "-");
  EXPECT_EQ(fused("scaleshift_f32_n1c32h8w8+relu", kConv), "-");
  EXPECT_EQ(fused("scaleshift_f64_n1c32h8w8", kPointwise), "-");
}

TEST(Fuse, TakesTheShuffleBehindAConcatenation) {
  EXPECT_EQ(fused("concat_f32_n1c16x16h8w8", "shuffle_f32_n1c32h8w8_g2"),
            to_string(parse_problem("concat_f32_n1c16x16h8w8_shuffle2")));
  EXPECT_EQ(fused("concat_f32_n1c16x16h8w8_shuffle2", "shuffle_f32_n1c32h8w8_g2"), "-");
}

}  // namespace
}  // namespace torchalgo

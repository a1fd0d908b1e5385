// SPDX-License-Identifier: BSD-3-Clause
#include "ir/problem.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "ir/arithmetic.h"

namespace torchalgo {
namespace {

const char* const kSpellings[] = {
    "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu",
    "fwd_bf16_n8c32h14w7_k32r5s1_st2x1_pad2x0_dil1x2_g32+bias+hardswish",
    "fwd_f32_n1c32h15w14_k32r3s3_st2x2_pad0x0x1x1_dil1x1_g32+bias+silu",
    "fwd_f32_n1c8h9w9_k8r2s4_st1x1_pad1x2x0x1_dil1x1_g1",
    "bwd_data_f16_n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
    "bwd_filter_tf32_n2c3h8w8_k4r3s3_st1x1_pad0x0_dil1x1_g1",
    "fwd_f64_n1c3d8h8w8_k4t3r3s3_st1x2x2_pad1x1x1_dil1x1x1_g1+bias",
    "maxpool_f32_n1c64h112w112_r3s3_st2x2_pad1x1_dil1x1",
    "maxpool_f32_n1c64h112w112_r3s3_st2x2_pad0x0_dil1x1_ceil",
    "avgpool_f32_n1c64h35w35_r3s3_st1x1_pad1x1",
    "avgpool_f32_n1c64h35w35_r3s3_st2x2_pad1x1_ceil_exclpad",
    "avgpool_f32_n1c2048h7w7_p1q1",
    "relu_f32_n1c64h56w56",
    "relu6_f32_n1c64h56w56",
    "sigmoid_f32_n1c64h1w1",
    "hardsigmoid_bf16_n1c64h1w1",
    "gelu_f32_n1c64h2w3",
    "gelu_tanh_f32_n1c64h2w3",
    "fwd_f32_n1c8h7w7_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias+gelu_tanh",
    "mish_f32_n1c64h2w3",
    "tanh_f32_n1c64h2w3",
    "elu1_f32_n1c64h2w3",
    "leaky_relu0.1_f32_n1c64h2w3",
    "leaky_relu-1e-05_bf16_n1c64h2w3",
    "clamp-1x1_f32_n1c64h2w3",
    "fwd_f32_n1c8h7w7_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias+add+leaky_relu1000000",
    "add_f32_n1c64h56w56+clamp-0.5x20",
    "chain_f32_n2c20h9w7_scaleshift+leaky_relu0.01_k24r1s1_st1x1_pad0x0_dil1x1_g1+elu0.5",
    "chain_f32_n2c20h9w7_scaleshift+gelu_tanh_k24r1s1_st1x1_pad0x0_dil1x1_g1+bias+gelu",
    "add_f32_n1c64h56w56",
    "add_f32_n1c64h56w56+relu",
    "mul_f32_n1c64h56w56_channelwise",
    "scaleshift_f32_n1c64h56w56+relu",
    "layernorm_f32_n1c96h56w56_eps1e-06",
    "layernorm_bf16_n1c96h56w56_eps0.001",
    "layernorm_f32_n1c96h56w56_eps0",
    "rmsnorm_f32_n1c96h56w56_eps1e-06",
    "variancenorm_bf16_n1c96h56w56_eps1e-05",
    "groupnorm_f32_n1c64h56w56_g32_eps1e-05",
    "groupnorm_bf16_n2c12h1w9_g12_eps0+silu",
    "moments_f32_n8c64h56w56",
    "normalize_f32_n8c64h56w56_eps1e-05+add+relu",
    "bwd_normalize_sums_bf16_n8c64h56w56_eps0.001",
    "bwd_normalize_f64_n8c64h56w56_eps1e-05",
    "bwd_normalize_sums_f32_n8c64h56w56_eps1e-05+relu",
    "bwd_normalize_f32_n8c64h56w56_eps1e-05+clamp-1x0.5",
    "bwd_relu_f32_n8c64h56w56",
    "bwd_gelu_tanh_f32_n8c64h56w56",
    "bwd_leaky_relu0.1_f32_n8c64h56w56",
    "bwd_maxpool_f32_n8c64h112w112_r3s3_st2x2_pad1x1_dil1x1_ceil",
    "bwd_avgpool_f32_n8c64h8w8_r2s2_st2x2_pad1x1_exclpad",
    "bwd_avgpool_f32_n8c64h7w7_p1q1",
    "channelsums_f32_n8c64h56w56",
    "channelsums_f32_n8c64h56w56_perimage",
    "channelsums_f32_n8c64h56w56_product",
    "channelsums_f32_n8c64h56w56_perimage_product",
    "concat_f32_n1c64x32x32h56w56",
    "concat_f32_n1c58x58h28w28_shuffle2",
    "slice_f32_n1c116h28w28_k58from58",
    "shuffle_f32_n2c240h28w28_g3",
    "pixelshuffle_f32_n1c64h56w56_x2",
    "pixelshuffle_bf16_n2c27h5w6_x3",
    "nearest_f32_n1c64h7w7_p14q14",
    "nearest_f32_n1c64h7w7_x2x2",
    "bilinear_f32_n1c64h7w7_p13q9_align",
    "linear_f32_n1c2048_k1000+bias",
    "attention_f32_n1h4q196k49d16w32",
    "attention_f16_n2q9k21d8w5_bias2x1x21_scale0.3",
    "attention_f32_n1h4q196k49d16w32_bias4x196x49",
    "attention_f32_n1h4q196k49d16w32_scale-1",
    "linearattention_f32_n1h4q196k196d16w16_eps1e-15",
    "transform_f32_n1c64h56w56_nchw_nChw16c",
    "transform_bf16_n1c64d4h56w56_nhwc_nchw",
    "chain_f32_n1c96h14w14_k96r5s5_st2x1_pad2x2_dil1x1_g96+bias_k24r1s1_st1x1_pad0x0_dil1x1_g1",
    "chain_f32_n2c24h7w7_avgpool_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu"
    "_k24r1s1_st1x1_pad0x0_dil1x1_g1+bias+hardsigmoid",
    "chain_f32_n1c24h9w8_k24r3s3_st2x2_pad0x0x1x1_dil1x1_g24+bias_k40r1s1_st1x1_pad0x0_dil1x1_g1",
    "chain_f32_n1c24h7w7_mul_k40r1s1_st1x1_pad0x0_dil1x1_g1+bias+add",
    "chain_f32_n1c24h7w7_scaleshift+relu_k40r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu",
    "chain_f32_n2c16h9w8_k96r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu6"
    "_k96r3s3_st1x1_pad1x1_dil1x1_g96+bias+hardswish_k24r1s1_st1x1_pad0x0_dil1x1_g1+bias+add",
};

TEST(ParseProblem, IsTheInverseOfPrinting) {
  for (const char* text : kSpellings) {
    const Problem problem = parse_problem(text);
    EXPECT_EQ(to_string(problem), text);
    EXPECT_EQ(parse_problem(to_string(problem)), problem) << text;
  }
}

TEST(ParseProblem, IsTheInverseOfPrintingOnRandomConvolutions) {
  std::mt19937 random(1);
  const auto pick = [&](int from, int to) {
    return std::uniform_int_distribution(from, to)(random);
  };
  for (int turn = 0; turn < 2000; ++turn) {
    ConvProblem conv;
    conv.direction = static_cast<Direction>(pick(0, 2));
    conv.dtype = static_cast<DType>(pick(0, 4));
    conv.is_3d = pick(0, 1) == 1;
    conv.groups = pick(1, 4);
    conv.n = pick(1, 9);
    conv.c = conv.groups * pick(1, 40);
    conv.k = conv.groups * pick(1, 40);
    conv.h = pick(20, 300), conv.w = pick(20, 300);
    conv.r = pick(1, 7), conv.s = pick(1, 7);
    conv.stride_h = pick(1, 3), conv.stride_w = pick(1, 3);
    conv.pad_h = pick(0, 3), conv.pad_w = pick(0, 3);
    conv.dilation_h = pick(1, 2), conv.dilation_w = pick(1, 2);
    if (!conv.is_3d && conv.direction == Direction::kForward)
      conv.extra_h = pick(0, 4) - conv.pad_h, conv.extra_w = pick(0, 4) - conv.pad_w;
    if (conv.is_3d)
      conv.d = pick(7, 20), conv.t = pick(1, 3), conv.stride_d = pick(1, 2), conv.pad_d = 1;
    for (int i = pick(0, 3); i > 0; --i) {
      PostOp op = kPostOps.at(pick(0, static_cast<int>(kPostOps.size()) - 1)).first;
      for (int number = 0; number < number_count(op.kind); ++number) {
        const bool is_low = op.kind == PostOp::kClamp && number == 0;
        op.numbers.at(number) = (is_low ? -1 : 1) * pick(1, 1000) / 7.0;
      }
      conv.epilogue.push_back(op);
    }
    EXPECT_EQ(parse_problem(to_string(conv)), Problem(conv)) << to_string(conv);
  }
}

TEST(ParseProblem, RefusesWhatIsNoProblemAndSaysWhere) {
  const char* const bad[] = {
      "",
      "fwd",
      "fwd_f33_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
      "fwd_f32_n0c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
      "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g3",
      "fwd_f32_n1c64h56w56_k64r3s3_st0x1_pad1x1_dil1x1_g1",
      "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1+selu",
      "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1+leaky_relu",
      "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1+relu0.1",
      "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1 ",
      "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1x1x1_dil1x1_g1",
      "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1x0_dil1x1_g1",
      "bwd_data_f32_n1c64h56w56_k64r3s3_st1x1_pad0x0x1x1_dil1x1_g1",
      "maxpool_f32_n1c64h56w56_r3s3_st1x1_pad0x0x1x1_dil1x1",
      "fwd_f32_n1c64h2w2_k64r7s7_st1x1_pad1x1_dil1x1_g1",
      "fwd_f32_n01c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
      "fwd_f32_n99999999999999999999c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
      "fwd_f32_n-1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
      "maxpool_f32_n1c64h112w112_r3s3_st2x2_pad2x1_dil1x1",
      "transform_f32_n1c64h56w56_nchw_nCHW",
      "selu_f32_n1c64h56w56",
      "leaky_relu_f32_n1c64h56w56",
      "leaky_relu0.10_f32_n1c64h56w56",
      "leaky_relu1000001_f32_n1c64h56w56",
      "leaky_reluinf_f32_n1c64h56w56",
      "clamp1_f32_n1c64h56w56",
      "clamp0.5x1_f32_n1c64h56w56",
      "clamp-0x1_f32_n1c64h56w56",
      "clamp-1x-0.5_f32_n1c64h56w56",
      "attention_f32_n1h0q9k9d8w8",
      "attention_f32_n1h2q9k7d8w8_bias9x9",
      "attention_f32_n1q9k7d8w8_bias1x1x9x7",
      "attention_f32_n1h2q9k7d8w8_eps1e-05",
      "attention_f32_n1h2q9k7d8w8_scale",
      "attention_f32_n1h2q9k7d8w8_scale1_bias9x7",
      "linearattention_f32_n1h2q9k7d8w8",
      "linearattention_f32_n1h2q9k7d8w8_scale1",
      "layernorm_f32_n1c64h56w56",
      "layernorm_f32_n1c64h56w56_eps1e-5",
      "layernorm_f32_n1c64h56w56_eps-1e-05",
      "layernorm_f32_n1c64h56w56_eps2",
      "layernorm_f32_n1c64h56w56_epsnan",
      "groupnorm_f32_n1c64h56w56_eps1e-05",
      "groupnorm_f32_n1c64h56w56_g3_eps1e-05",
      "groupnorm_f32_n1c64h56w56_g0_eps1e-05",
      "groupnorm_f32_n1c64h56w56_g32",
      "moments_f32_n8c64h56w56_eps1e-05",
      "normalize_f32_n8c64h56w56",
      "bwd_normalize_f32_n8c64h56w56_eps1e-05+add",
      "bwd_normalize_f32_n8c64h56w56_eps1e-05+relu+relu",
      "moments_f32_n8c64h56w56+relu",
      "bwd_add_f32_n8c64h56w56",
      "bwd_linear_f32_n1c2048_k1000",
      "bwd_maxpool_f32_n1c8h2w2_r5s5_st1x1_pad0x0_dil1x1",
      "channelsums_f32_n8c64h56w56_product_perimage",
      "pixelshuffle_f32_n1c64h56w56",
      "pixelshuffle_f32_n1c64h56w56_x1",
      "pixelshuffle_f32_n1c66h56w56_x2",
      "pixelshuffle_f32_n1c64h56w56_x1000000000",
      "pixelshuffle_f32_n1c64h56w56_x2+relu",
  };
  for (const char* text : bad) {
    EXPECT_THROW(static_cast<void>(parse_problem(text)), Error) << text;
  }
  try {
    static_cast<void>(parse_problem("fwd_f33_n1"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("at 'f33_n1'"), std::string::npos) << error.what();
  }
  try {
    static_cast<void>(parse_problem("transform_f32_n1c64h8w8_nChw8c_nchw"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "TA4001 'transform_f32_n1c64h8w8_nChw8c_nchw' is no problem: " + refuse_layout("nChw8c"));
  }
}

// The numbers are allowed, and their products are not.
TEST(ParseProblem, RefusesCountsThatMayOverflow) {
  const char* const large[] = {
      "fwd_f32_n1000000000c1000000000h100000w100000_k16r3s3_st1x1_pad1x1_dil1x1_g1",
      "fwd_f32_n1c16h1000000000w1000000000_k16r1s1_st1x1_pad0x0_dil1x1_g1",
      "fwd_f32_n1c16h1w1_k16r1s1_st1x1_pad1000000000x1000000000_dil1x1_g1",
      "fwd_f32_n1c16h1w1_k16r1s1_st1x1_pad0x0x1000000000x1000000000_dil1x1_g1",
      "fwd_f32_n1c1000000000h1w1_k1000000000r1s1_st1x1_pad0x0_dil1x1_g1",
      "fwd_f32_n1c1048576h1000w1000_k1048576r1s1_st1x1_pad0x0_dil1x1_g1",
      "bwd_filter_f32_n1000000000c16h1000w1000_k16r3s3_st1x1_pad1x1_dil1x1_g1",
      "fwd_f32_n1c16d1000000h1000000w1000000_k16t1r1s1_st1x1x1_pad0x0x0_dil1x1x1_g1",
      "maxpool_f32_n1000000000c1000000000h1000w1000_r2s2_st2x2_pad0x0_dil1x1",
      "bwd_maxpool_f32_n1000000000c1000000000h1000w1000_r2s2_st2x2_pad0x0_dil1x1",
      "avgpool_f32_n1c16h7w7_p1000000000q1000000000",
      "nearest_f32_n1c16h1000000000w1_x1000000000x1",
      "pixelshuffle_f32_n1000000000c4h1000000w1_x2",
      "linear_f32_n1c1000000000_k1000000000",
      "attention_f32_n1q1000000000k1000000000d1w1",
      "concat_f32_n1000000000c1000x1000h1000w1",
      "transform_f32_n1000000000c1000000000h1w1_nchw_nhwc",
      "chain_f32_n1c24h9w9_k1000000000r1s1_st1x1_pad1000x1000_dil1x1_g1_k17r1s1_st1x1_pad0x0_dil1x1"
      "_g1",
      "add_f32_n1000000000c1000000000h1000000000w1000000000",
  };
  for (const char* text : large) {
    try {
      static_cast<void>(parse_problem(text));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("is too large: needs"), std::string::npos)
          << error.what();
    }
  }
  for (const char* text : {"fwd_f32_n4096c256h56w56_k256r3s3_st1x1_pad1x1_dil1x1_g1",
                           "linear_f32_n4096c100000_k100000", "relu_f32_n1c1h1w1000000000"}) {
    EXPECT_EQ(to_string(parse_problem(text)), text);
  }
}

TEST(ResultSizes, FollowsTorchsFormulas) {
  const auto sizes = [](const char* text) { return result_sizes(parse_problem(text)); };
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(sizes("fwd_f32_n1c3h224w224_k64r7s7_st2x2_pad3x3_dil1x1_g1"), (Sizes{1, 64, 112, 112}));
  EXPECT_EQ(sizes("fwd_f32_n1c3h224w225_k64r3s2_st2x1_pad0x1x1x0_dil1x1_g1"),
            (Sizes{1, 64, 112, 225}));
  EXPECT_EQ(sizes("bwd_data_f32_n1c3h224w224_k64r7s7_st2x2_pad3x3_dil1x1_g1"),
            (Sizes{1, 3, 224, 224}));
  EXPECT_EQ(sizes("bwd_filter_f32_n1c4h8w8_k6r3s3_st1x1_pad0x0_dil1x1_g2"), (Sizes{6, 2, 3, 3}));
  EXPECT_EQ(sizes("maxpool_f32_n1c64h112w112_r3s3_st2x2_pad0x0_dil1x1"), (Sizes{1, 64, 55, 55}));
  EXPECT_EQ(sizes("maxpool_f32_n1c64h112w112_r3s3_st2x2_pad0x0_dil1x1_ceil"),
            (Sizes{1, 64, 56, 56}));
  EXPECT_EQ(sizes("maxpool_f32_n1c1h5w5_r2s2_st2x2_pad1x1_dil1x1_ceil"), (Sizes{1, 1, 3, 3}));
  EXPECT_EQ(sizes("concat_f32_n2c64x32x32h5w6"), (Sizes{2, 128, 5, 6}));
  EXPECT_EQ(sizes("concat_f32_n1c6x6h5w6_shuffle4"), (Sizes{1, 12, 5, 6}));
  EXPECT_EQ(sizes("slice_f32_n2c10h5w6_k3from7"), (Sizes{2, 3, 5, 6}));
  EXPECT_EQ(sizes("shuffle_f32_n2c10h5w6_g5"), (Sizes{2, 10, 5, 6}));
  EXPECT_EQ(sizes("pixelshuffle_f32_n2c27h5w6_x3"), (Sizes{2, 3, 15, 18}));
  EXPECT_EQ(sizes("nearest_f32_n1c64h7w8_x2x3"), (Sizes{1, 64, 14, 24}));
}

TEST(WithInputSizes, KeepsTheOperation) {
  const auto resized = [](const char* text, std::vector<std::vector<std::int64_t>> sizes) {
    return to_string(with_input_sizes(parse_problem(text), sizes));
  };
  EXPECT_EQ(resized("fwd_f32_n1c64h56w56_k8r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu", {{4, 64, 9, 7}}),
            "fwd_f32_n4c64h9w7_k8r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu");
  EXPECT_EQ(resized("avgpool_f32_n1c8h7w7_p1q1", {{2, 8, 9, 9}}), "avgpool_f32_n2c8h9w9_p1q1");
  EXPECT_EQ(resized("nearest_f32_n1c8h7w7_x2x2", {{1, 8, 5, 5}}), "nearest_f32_n1c8h5w5_x2x2");
  EXPECT_EQ(resized("nearest_f32_n1c8h7w7_p14q14", {{1, 8, 5, 5}}), "nearest_f32_n1c8h5w5_p14q14");
  EXPECT_EQ(resized("concat_f32_n1c8x4h7w7", {{1, 8, 5, 5}, {1, 4, 5, 5}}),
            "concat_f32_n1c8x4h5w5");
  EXPECT_EQ(resized("slice_f32_n1c8h7w7_k3from2", {{4, 8, 5, 6}}), "slice_f32_n4c8h5w6_k3from2");
  EXPECT_EQ(resized("shuffle_f32_n1c8h7w7_g4", {{4, 8, 5, 6}}), "shuffle_f32_n4c8h5w6_g4");
  EXPECT_EQ(resized("pixelshuffle_f32_n1c8h7w7_x2", {{4, 8, 5, 6}}),
            "pixelshuffle_f32_n4c8h5w6_x2");
  // A transposed convolution with stride 2 and output padding 1 keeps both.
  EXPECT_EQ(resized("bwd_data_f32_n1c8h14w14_k16r3s3_st2x2_pad1x1_dil1x1_g1", {{1, 16, 9, 9}}),
            "bwd_data_f32_n1c8h18w18_k16r3s3_st2x2_pad1x1_dil1x1_g1");
}

TEST(WithInputSizes, RefusesWhatDoesNotFit) {
  const Problem conv = parse_problem("fwd_f32_n1c64h56w56_k8r3s3_st1x1_pad0x0_dil1x1_g1");
  EXPECT_THROW(static_cast<void>(with_input_sizes(conv, {{1, 32, 56, 56}})), Error);
  EXPECT_THROW(static_cast<void>(with_input_sizes(conv, {{1, 64, 56}})), Error);
  EXPECT_THROW(static_cast<void>(with_input_sizes(conv, {{1, 64, 2, 2}})), Error);
  EXPECT_THROW(static_cast<void>(with_input_sizes(conv, {})), Error);
  const Problem add = parse_problem("add_f32_n1c64h56w56");
  EXPECT_THROW(static_cast<void>(with_input_sizes(add, {{1, 64, 5, 5}, {1, 64, 5, 6}})), Error);
  EXPECT_THROW(static_cast<void>(with_input_sizes(conv, {{1, 64, 1 << 20, 1 << 20}})), Error);
  constexpr std::int64_t kHuge = std::int64_t{1} << 61;
  for (const char* text : {"nearest_f32_n1c8h7w7_x200x200", "relu_f32_n1c8h7w7",
                           "bwd_data_f32_n1c8h14w14_k8r3s3_st2x2_pad1x1_dil1x1_g1"}) {
    for (const std::int64_t height : {kHuge, std::int64_t{1} << 29}) {
      EXPECT_THROW(static_cast<void>(with_input_sizes(parse_problem(text), {{1, 8, height, 4096}})),
                   Error)
          << text;
    }
  }
  for (const char* text : {"slice_f32_n1c8h7w7_k3from2", "pixelshuffle_f32_n1c8h7w7_x2"}) {
    EXPECT_THROW(static_cast<void>(with_input_sizes(parse_problem(text), {{1, 16, 7, 7}})), Error);
  }
}

TEST(AsBiasAddActivation, KnowsTheOneOrder) {
  using enum PostOp::Kind;
  EXPECT_EQ(as_bias_add_activation({}), BiasAddActivation());
  EXPECT_EQ(as_bias_add_activation({kBias, kAdd, kRelu}), (BiasAddActivation{true, true, kRelu}));
  EXPECT_EQ(as_bias_add_activation({kSilu}), (BiasAddActivation{false, false, kSilu}));
  EXPECT_FALSE(as_bias_add_activation({kBias, kRelu, kAdd}));
  EXPECT_FALSE(as_bias_add_activation({kAdd, kBias}));
}

TEST(FlopCount, CountsTwoPerMultiplyAdd) {
  const auto count = [](const char* text) { return flop_count(parse_problem(text)); };
  EXPECT_EQ(count("fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1"),
            2.0 * 64 * 56 * 56 * 64 * 9);
  EXPECT_EQ(count("fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g64"), 2.0 * 64 * 56 * 56 * 9);
  EXPECT_EQ(count("linear_f32_n2c10_k4"), 2.0 * 2 * 10 * 4);
}

TEST(TermsPerElement, AreTheProductsOrElementsOfOneSum) {
  const auto terms = [](const char* text) { return terms_per_element(parse_problem(text)); };
  EXPECT_EQ(terms("fwd_f32_n2c64h9w9_k32r3s3_st1x1_pad1x1_dil1x1_g2"), 9 * 32);
  EXPECT_EQ(terms("bwd_data_f32_n2c64h9w9_k32r3s3_st1x1_pad1x1_dil1x1_g2"), 9 * 16);
  EXPECT_EQ(terms("bwd_filter_f32_n2c64h9w9_k32r3s3_st1x1_pad1x1_dil1x1_g2"), 2 * 9 * 9);
  for (const char* sums : {"moments_f32_n2c64h9w8", "bwd_normalize_sums_f32_n2c64h9w8_eps1e-05",
                           "channelsums_f32_n2c64h9w8"}) {
    EXPECT_EQ(terms(sums), 2 * 9 * 8) << sums;
  }
  for (const char* few : {"normalize_f32_n2c64h9w8_eps1e-05",
                          "bwd_normalize_f32_n2c64h9w8_eps1e-05", "add_f32_n2c64h9w8"}) {
    EXPECT_LT(terms(few), 10) << few;
  }
  for (const char* copied : {"relu_f32_n2c64h9w8", "concat_f32_n2c64x4h9w8"}) {
    EXPECT_FALSE(terms(copied)) << copied;
  }
}

constexpr const char* kChain =
    "chain_f32_n2c16h9w8_k96r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu6"
    "_k96r3s3_st2x2_pad1x1_dil1x1_g96+bias+relu6_k24r1s1_st1x1_pad0x0_dil1x1_g1+bias+add";

TEST(Attention, HasTheSizesOfItsTensors) {
  using Sizes = std::vector<std::int64_t>;
  const Problem heads = parse_problem("attention_f32_n2h3q9k7d8w5_bias9x7");
  EXPECT_EQ(input_sizes(heads),
            (std::vector<Sizes>{{2, 3, 9, 8}, {2, 3, 7, 8}, {2, 3, 7, 5}, {9, 7}}));
  EXPECT_EQ(result_sizes(heads), (Sizes{2, 3, 9, 5}));
  EXPECT_EQ(flop_count(heads), 2.0 * 2 * 3 * 9 * 7 * (8 + 5));
  EXPECT_EQ(least_flop_count(heads), flop_count(heads));
  const Problem linear = parse_problem("linearattention_f32_n2q9k7d8w5_eps0.1");
  EXPECT_EQ(input_sizes(linear), (std::vector<Sizes>{{2, 9, 8}, {2, 7, 8}, {2, 7, 5}}));
  EXPECT_EQ(result_sizes(linear), (Sizes{2, 9, 5}));
  EXPECT_EQ(flop_count(linear), 2.0 * 2 * (9 + 7) * 8 * (5 + 1));
  const auto scale = [](const char* text) {
    return scale_of(std::get<AttentionProblem>(parse_problem(text)));
  };
  EXPECT_EQ(scale("attention_f32_n1q9k7d16w5"), 0.25);
  EXPECT_EQ(scale("attention_f32_n1q9k7d16w5_scale-1"), -1);
}

TEST(Attention, TakesOtherSizes) {
  using AllSizes = std::vector<std::vector<std::int64_t>>;
  const auto resized = [](const char* text, const AllSizes& sizes) {
    return to_string(with_input_sizes(parse_problem(text), sizes));
  };
  EXPECT_EQ(resized("attention_f32_n2h3q9k7d8w5_bias9x7_scale0.5",
                    {{1, 4, 3, 8}, {1, 4, 6, 8}, {1, 4, 6, 2}, {4, 1, 6}}),
            "attention_f32_n1h4q3k6d8w2_bias4x1x6_scale0.5");
  EXPECT_THROW(static_cast<void>(resized("attention_f32_n2h3q9k7d8w5",
                                         {{1, 4, 3, 8}, {1, 4, 6, 9}, {1, 4, 6, 2}})),
               Error);
  EXPECT_THROW(static_cast<void>(resized("attention_f32_n2h3q9k7d8w5_bias9x7",
                                         {{1, 4, 3, 8}, {1, 4, 6, 8}, {1, 4, 6, 2}, {9, 7}})),
               Error);
}

TEST(ConvChain, HasTheInputOfTheFirstAndTheResultOfTheLast) {
  const Problem chain = parse_problem(kChain);
  EXPECT_EQ(input_sizes(chain),
            (std::vector<std::vector<std::int64_t>>{{2, 16, 9, 8}, {2, 24, 5, 4}}));
  EXPECT_EQ(result_sizes(chain), (std::vector<std::int64_t>{2, 24, 5, 4}));
  const std::vector<Problem> layers = layers_of(chain);
  ASSERT_EQ(layers.size(), 3U);
  EXPECT_EQ(to_string(layers[1]), "fwd_f32_n2c96h9w8_k96r3s3_st2x2_pad1x1_dil1x1_g96+bias+relu6");
  double flops = 0;
  for (const Problem& layer : layers) flops += flop_count(layer);
  EXPECT_EQ(flop_count(chain), flops);
  EXPECT_EQ(dtype_of(chain), DType::kF32);
  EXPECT_EQ(epilogue_of(chain), (Epilogue{PostOp::kBias, PostOp::kAdd}));
}

TEST(ConvChain, GrowsFromAConvolutionAndTakesOtherSizes) {
  const std::vector<Problem> layers = layers_of(parse_problem(kChain));
  Problem chain = layers[0];
  for (std::size_t i = 1; i < layers.size(); ++i)
    chain = with_next(chain, std::get<ConvProblem>(layers[i]));
  EXPECT_EQ(to_string(chain), kChain);
  EXPECT_EQ(to_string(with_epilogue(chain, {})),
            std::string(kChain).substr(0, std::string(kChain).rfind("+bias+add")));
  const Problem larger = with_input_sizes(chain, {{1, 16, 20, 30}, {1, 24, 10, 15}});
  EXPECT_EQ(result_sizes(larger), (std::vector<std::int64_t>{1, 24, 10, 15}));
  EXPECT_EQ(parse_problem(to_string(larger)), larger);
  EXPECT_THROW(with_next(layers[0], std::get<ConvProblem>(layers[2])), InternalError);
  EXPECT_THROW(weight_sizes(chain), InternalError);
}

TEST(ConvChain, WithAHeadHasItsInputs) {
  const Problem product = parse_problem("mul_f32_n2c24h7w5_channelwise");
  const auto conv = std::get<ConvProblem>(
      parse_problem("fwd_f32_n2c24h7w5_k40r1s1_st1x1_pad0x0_dil1x1_g1+bias+add"));
  const Problem chain = with_next(product, conv);
  EXPECT_EQ(to_string(chain), "chain_f32_n2c24h7w5_mul_k40r1s1_st1x1_pad0x0_dil1x1_g1+bias+add");
  EXPECT_EQ(input_sizes(chain),
            (std::vector<std::vector<std::int64_t>>{{2, 24, 7, 5}, {2, 24, 1, 1}, {2, 40, 7, 5}}));
  EXPECT_EQ(layers_of(chain), (std::vector<Problem>{product, conv}));
  EXPECT_EQ(flop_count(chain), flop_count(product) + flop_count(conv));
  const Problem larger = with_input_sizes(chain, {{1, 24, 9, 9}, {1, 24, 1, 1}, {1, 40, 9, 9}});
  EXPECT_EQ(result_sizes(larger), (std::vector<std::int64_t>{1, 40, 9, 9}));
  const Problem affine = parse_problem("scaleshift_f32_n2c24h7w5+relu");
  EXPECT_EQ(to_string(with_next(affine, conv)),
            "chain_f32_n2c24h7w5_scaleshift+relu_k40r1s1_st1x1_pad0x0_dil1x1_g1+bias+add");
}

TEST(ConvChain, BehindAGlobalPoolingIsOfOnePixel) {
  const Problem pool = parse_problem("avgpool_f32_n2c24h7w5_p1q1");
  const auto conv = std::get<ConvProblem>(
      parse_problem("fwd_f32_n2c24h1w1_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu"));
  const Problem chain = with_next(pool, conv);
  EXPECT_EQ(to_string(chain),
            "chain_f32_n2c24h7w5_avgpool_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu");
  EXPECT_EQ(input_sizes(chain), (std::vector<std::vector<std::int64_t>>{{2, 24, 7, 5}}));
  EXPECT_EQ(result_sizes(chain), (std::vector<std::int64_t>{2, 8, 1, 1}));
  EXPECT_EQ(layers_of(chain), (std::vector<Problem>{pool, conv}));
  const Problem larger = with_input_sizes(chain, {{1, 24, 9, 9}});
  EXPECT_EQ(to_string(larger),
            "chain_f32_n1c24h9w9_avgpool_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu");
  EXPECT_FALSE(is_chain_head(parse_problem("avgpool_f32_n2c24h7w5_p2q1")));
}

TEST(ConvChain, OfOneConvolutionOrWithAResidualInsideIsNone) {
  for (const char* text :
       {"chain_f32_n1c16h9w8_k96r1s1_st1x1_pad0x0_dil1x1_g1+bias",
        "chain_f32_n1c16h9w8_k96r1s1_st1x1_pad0x0_dil1x1_g1+add_k8r1s1_st1x1_pad0x0_dil1x1_g1",
        "chain_f32_n1c16h9w8_k96r1s1_st1x1_pad0x0_dil1x1_g1_k8r1s1_st1x1_pad0x0_dil1x1_g5",
        "chain_f32_n1c16h2w2_k9r1s1_st1x1_pad0x0_dil1x1_g1_k9r5s5_st1x1_pad0x0_dil1x1_g9"}) {
    EXPECT_THROW(parse_problem(text), Error) << text;
  }
}

}  // namespace
}  // namespace torchalgo

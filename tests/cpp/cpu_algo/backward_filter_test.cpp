// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "cpu_algo/list.h"
#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

// Odd sizes, single pixels, channels beside the blocks of 16, one image and several, groups.
const std::set<std::string> kWinogradToo = {"cpu.winograd_f3x3_4x4", "cpu.outer_product"};
const std::set<std::string> kOuterProduct = {"cpu.outer_product"};
const std::set<std::string> kStem = {"cpu.stem_backward_filter", "cpu.outer_product"};
const std::set<std::string> kDepthwise = {"cpu.depthwise_backward_filter"};
const std::vector<std::pair<const char*, std::set<std::string>>> kProblems = {
    {"bwd_filter_f32_n2c19h13w11_k37r3s3_st1x1_pad1x1_dil1x1_g1", kWinogradToo},
    {"bwd_filter_f32_n1c16h8w8_k16r3s3_st1x1_pad0x0_dil1x1_g1", kWinogradToo},
    {"bwd_filter_f32_n3c5h9w30_k33r3s3_st1x1_pad2x0_dil1x1_g1", kWinogradToo},
    {"bwd_filter_f32_n1c1h4w4_k1r3s3_st1x1_pad1x1_dil1x1_g1", kWinogradToo},
    {"bwd_filter_f32_n2c70h7w7_k100r3s3_st1x1_pad1x1_dil1x1_g1", kWinogradToo},
    {"bwd_filter_f32_n6c16h29w30_k48r3s3_st1x1_pad1x1_dil1x1_g1", kWinogradToo},
    {"bwd_filter_f32_n2c96h14w14_k64r3s3_st1x1_pad1x1_dil1x1_g2", kWinogradToo},
    {"bwd_filter_f32_n1c16h1w1_k16r3s3_st1x1_pad1x1_dil1x1_g1", kOuterProduct},
    {"bwd_filter_f32_n1c17h2w3_k33r3s3_st1x1_pad3x3_dil1x1_g1", kOuterProduct},
    {"bwd_filter_f32_n5c40h7w7_k72r1s1_st1x1_pad0x0_dil1x1_g1", kOuterProduct},
    {"bwd_filter_f32_n2c16h57w57_k24r1s1_st1x1_pad0x0_dil1x1_g1", kOuterProduct},
    {"bwd_filter_f32_n2c130h14w14_k150r1s1_st1x1_pad0x0_dil1x1_g1", kOuterProduct},
    {"bwd_filter_f32_n2c33h15w14_k20r1s1_st2x2_pad0x0_dil1x1_g1", kOuterProduct},
    {"bwd_filter_f32_n2c64h31w30_k80r1s1_st2x3_pad0x0_dil1x1_g1", kOuterProduct},
    {"bwd_filter_f32_n2c33h15w14_k20r1s1_st2x2_pad1x0_dil1x1_g1", kOuterProduct},
    {"bwd_filter_f32_n3c20h13w16_k40r3s3_st2x2_pad1x1_dil1x1_g1", kOuterProduct},
    {"bwd_filter_f32_n2c16h12w17_k16r5s3_st3x2_pad2x0_dil1x1_g1", kOuterProduct},
    {"bwd_filter_f32_n2c64h12w12_k32r3s3_st2x2_pad1x1_dil1x1_g2", kOuterProduct},
    {"bwd_filter_f32_n2c20h20w20_k24r7s7_st2x2_pad3x3_dil1x1_g1", kOuterProduct},
    {"bwd_filter_f32_n2c3h33w31_k24r7s7_st2x2_pad3x3_dil1x1_g1", kStem},
    {"bwd_filter_f32_n1c3h64w64_k64r3s3_st2x2_pad1x1_dil1x1_g1", kStem},
    {"bwd_filter_f32_n3c1h5w9_k17r5s3_st1x2_pad4x0_dil1x1_g1", kStem},
    {"bwd_filter_f32_n1c4h2w2_k100r3s3_st1x1_pad2x2_dil1x1_g1", kStem},
    {"bwd_filter_f32_n2c40h15w14_k40r3s3_st1x1_pad1x1_dil1x1_g40", kDepthwise},
    {"bwd_filter_f32_n8c20h30w31_k20r3s3_st2x2_pad1x1_dil1x1_g20", kDepthwise},
    {"bwd_filter_f32_n1c5h7w7_k5r5s5_st1x1_pad2x2_dil1x1_g5", kDepthwise},
    {"bwd_filter_f32_n2c33h9w9_k33r7s7_st2x2_pad3x3_dil1x1_g33", kDepthwise},
    {"bwd_filter_f32_n1c16h6w8_k16r2s4_st1x1_pad1x1_dil1x1_g16", kDepthwise},
    {"bwd_filter_f32_n1c17h1w1_k17r3s3_st1x1_pad3x3_dil1x1_g17", kDepthwise},
};

// Rounding errors of the transforms are larger than those of a plain sum.
double bound_of(const Algorithm& algorithm) {
  return algorithm.name.find("winograd") != std::string::npos ? 1e-5 : 2e-6;
}

void expect_exact(const Algorithm& algorithm, const Problem& problem, const std::string& what) {
  const Offer offer = algorithm.offer(problem, cpu_device());
  for (const Primitive& primitive : offer.primitives) {
    expect_writes_inside(algorithm, problem, primitive);
    EXPECT_EQ(primitive.workspace_bytes % 64, 0) << to_string(primitive);
  }
  const auto results =
      check_primitives({algorithm}, problem, offer.primitives, bound_of(algorithm));
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].failure, "") << to_string(offer.primitives[i]) << what;
  }
}

TEST(BackwardFilter, AgreesWithF64InEveryAlgorithmLayoutAndBuild) {
  for (const auto& [text, families] : kProblems) {
    const Problem problem = parse_problem(text);
    for (const std::string& isa : isas()) {
      std::set<std::string> seen;
      for (const Algorithm& algorithm : prepared_algorithms(isa)) {
        if (algorithm.offer(problem, cpu_device()).primitives.empty()) continue;
        seen.insert(std::string(algorithm.name));
        for (const int count : {1, 2}) {
          const Threads threads(count);
          expect_exact(algorithm, problem,
                       std::string(" ") + text + " " + isa + " on " + std::to_string(count));
        }
      }
      for (const std::string& family : families)
        EXPECT_TRUE(seen.contains(family)) << family << " " << text;
    }
  }
}

void expect_same_bits_with_any_threads(const char* text) {
  const Problem problem = parse_problem(text);
  const Sample sample = make_sample(problem, 5);
  for (const Algorithm& algorithm : prepared_algorithms()) {
    if (algorithm.name == "cpu.winograd_f3x3_4x4") continue;  // it may have one sum per thread
    for (const Primitive& primitive : algorithm.offer(problem, cpu_device()).primitives) {
      at::Tensor first;
      for (const int count : {1, 2, 3}) {
        const Threads threads(count);
        const at::Tensor result = run_once(algorithm, problem, primitive, sample);
        if (!first.defined()) first = result.clone();
        EXPECT_TRUE(result.equal(first)) << to_string(primitive) << " " << text << " on " << count;
      }
    }
  }
}

TEST(BackwardFilter, OfSumsOfProductsHasTheSameBitsWithAnyNumberOfThreads) {
  for (const char* text : {"bwd_filter_f32_n8c32h28w28_k48r3s3_st1x1_pad1x1_dil1x1_g1",
                           "bwd_filter_f32_n8c3h56w56_k32r3s3_st2x2_pad1x1_dil1x1_g1",
                           "bwd_filter_f32_n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g64",
                           "bwd_filter_f32_n8c16h56w56_k20r1s1_st1x1_pad0x0_dil1x1_g1"})
    expect_same_bits_with_any_threads(text);
}

TEST(BackwardFilter, OuterProductRefusesOtherProblemsInWords) {
  const Algorithm algorithm = cpu_algorithm("cpu.outer_product");
  const auto refusal = [&](const char* text) {
    return algorithm.offer(parse_problem(text), cpu_device()).refusal;
  };
  EXPECT_EQ(refusal("bwd_filter_f32_n2c16h13w11_k16r3s3_st1x1_pad2x2_dil2x2_g1"),
            "needs dilation 1, got 2x2");
  EXPECT_EQ(refusal("bwd_filter_f32_n2c16h30w30_k16r9s9_st1x1_pad4x4_dil1x1_g1"),
            "needs at most 64 taps, got 9x9");
  EXPECT_EQ(refusal("bwd_filter_f64_n2c16h30w30_k16r3s3_st1x1_pad1x1_dil1x1_g1"),
            "is f32 only, got f64");
}

TEST(BackwardFilter, WinogradRefusesOtherProblemsInWords) {
  const Algorithm algorithm = cpu_algorithm("cpu.winograd_f3x3_4x4");
  const auto refusal = [&](const char* text) {
    return algorithm.offer(parse_problem(text), cpu_device()).refusal;
  };
  EXPECT_EQ(refusal("fwd_f32_n2c16h13w11_k16r3s3_st1x1_pad1x1_dil1x1_g1"),
            "computes gradients with respect to weights only, got fwd");
  EXPECT_EQ(refusal("bwd_filter_f32_n2c16h13w11_k16r3s3_st2x2_pad1x1_dil1x1_g1"),
            "needs stride 1, got 2x2");
  EXPECT_EQ(refusal("bwd_filter_f32_n2c16h13w11_k16r1s1_st1x1_pad0x0_dil1x1_g1"),
            "needs a 3x3 filter, got 1x1");
  EXPECT_EQ(refusal("bwd_filter_f32_n2c16h13w11_k16r3s3_st1x1_pad1x1_dil1x1_g2"),
            "needs groups of a multiple of 16 channels, got 8 to 8");
  EXPECT_NE(refusal("bwd_filter_f32_n2c16h2w2_k16r3s3_st1x1_pad1x1_dil1x1_g1"), "");
}

}  // namespace
}  // namespace torchalgo

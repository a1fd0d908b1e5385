// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

constexpr double kMaxRelError = 2e-6;

std::string pointwise(int k, const char* epilogue = "+bias+relu6") {
  return fmt::format("_k{}r1s1_st1x1_pad0x0_dil1x1_g1{}", k, epilogue);
}
std::string depthwise(int c, int taps, int stride, const char* epilogue = "+bias+relu6") {
  return fmt::format("_k{0}r{1}s{1}_st{2}x{2}_pad{3}x{3}_dil1x1_g{0}{4}", c, taps, stride, taps / 2,
                     epilogue);
}
Problem chain(const std::string& src, const std::vector<std::string>& filters) {
  std::string text = "chain_f32_" + src;
  for (const std::string& each : filters) text += each;
  return parse_problem(text);
}

TEST(ConvChain, AgreesWithF64OnInvertedResidualsOfAnySize) {
  for (const int taps : {3, 5}) {
    for (const int stride : {1, 2}) {
      for (const int size : {1, 2, 7, 15}) {
        expect_correct("cpu.conv_chain",
                       chain(fmt::format("n1c24h{}w{}", size, size + 1),
                             {pointwise(40), depthwise(40, taps, stride), pointwise(24, "+bias")}),
                       4, kMaxRelError);
      }
    }
  }
}

// Rows that a block hands on to the next one, images of a batch, a stride that steps over rows.
TEST(ConvChain, AgreesWithF64WhereTheImageIsCutIntoBlocks) {
  for (const char* rest :
       {"st1x1_pad1x1_dil1x1", "st2x2_pad1x1_dil1x1", "st4x1_pad0x0_dil1x1", "st1x1_pad4x4_dil3x2",
        "st1x2_pad0x1_dil2x1", "st2x2_pad0x0x1x1_dil1x1", "st1x1_pad3x0x0x2_dil1x1"}) {
    for (const int n : {1, 3}) {
      expect_correct("cpu.conv_chain",
                     chain(fmt::format("n{}c8h61w50", n),
                           {pointwise(144), fmt::format("_k144r3s3_{}_g144+bias", rest),
                            pointwise(16, "+bias+hardswish")}),
                     4, kMaxRelError);
    }
  }
}

TEST(ConvChain, AgreesWithF64OnHalvesOfAnInvertedResidual) {
  expect_correct("cpu.conv_chain",
                 chain("n2c20h30w31", {pointwise(72, ""), depthwise(72, 3, 2, "+bias+hardswish")}),
                 2, kMaxRelError);
  expect_correct("cpu.conv_chain",
                 chain("n2c72h61w50", {depthwise(72, 5, 1, ""), pointwise(21, "+relu")}), 2,
                 kMaxRelError);
}

TEST(ConvChain, AgreesWithF64BehindAStem) {
  expect_correct("cpu.conv_chain",
                 chain("n1c3h65w66", {"_k32r3s3_st2x2_pad1x1_dil1x1_g1+bias+relu6",
                                      depthwise(32, 3, 1), pointwise(16, "+bias")}),
                 4, kMaxRelError);
  expect_correct("cpu.conv_chain",
                 chain("n2c17h40w21", {"_k48r5s3_st1x2_pad2x1_dil1x1_g1+bias+silu",
                                       depthwise(48, 3, 1, "+bias+silu")}),
                 2, kMaxRelError);
}

TEST(ConvChain, AddsAResidualAndAppliesEachActivation) {
  for (const char* act : {"+relu", "+relu6", "+hardswish", "+silu", "+sigmoid", "+hardsigmoid",
                          "+leaky_relu0.1", "+clamp-1x2"}) {
    const std::string epilogue = std::string("+bias") + act;
    const std::string last = std::string("+bias+add") + act;
    expect_correct(
        "cpu.conv_chain",
        chain("n1c20h14w14", {pointwise(50, epilogue.c_str()),
                              depthwise(50, 3, 1, epilogue.c_str()), pointwise(20, last.c_str())}),
        4, kMaxRelError);
    expect_correct(
        "cpu.conv_chain",
        chain("n1c20h14w14", {pointwise(50, epilogue.c_str()), depthwise(50, 3, 1, last.c_str())}),
        2, kMaxRelError);
  }
}

TEST(ConvChain, RefusesWhatItCannotRun) {
  const Algorithm row = cpu_algorithm("cpu.conv_chain");
  const auto refusal = [&](const Problem& problem) {
    return row.offer(problem, cpu_device()).refusal;
  };
  EXPECT_NE(refusal(parse_problem("fwd_f32_n1c8h8w8_k8r1s1_st1x1_pad0x0_dil1x1_g1")), "");
  EXPECT_NE(refusal(chain("n1c8h8w8", {pointwise(8), pointwise(8)})), "");
  EXPECT_NE(refusal(chain("n1c8h8w8", {depthwise(8, 3, 1), depthwise(8, 3, 1)})), "");
  EXPECT_NE(refusal(chain("n1c8h8w8", {depthwise(8, 3, 1), "_k8r3s3_st1x1_pad1x1_dil1x1_g1"})), "");
  EXPECT_NE(refusal(chain("n1c8h8w8", {"_k8r1s1_st1x1_pad0x0_dil1x1_g2", depthwise(8, 3, 1)})), "");
  Problem half = chain("n1c8h8w8", {pointwise(8), depthwise(8, 3, 1)});
  for (Problem& layer : std::get<ConvChainProblem>(half).layers)
    std::get<ConvProblem>(layer).dtype = DType::kF16;
  EXPECT_NE(refusal(half), "");
}

// What lies between the convolutions fits the caches, whatever the image's size.
TEST(ConvChain, NeedsAWorkspaceOfACache) {
  const Problem problem =
      chain("n1c16h448w448", {pointwise(96), depthwise(96, 3, 2), pointwise(24, "+bias")});
  const Offer offer = cpu_algorithm("cpu.conv_chain").offer(problem, cpu_device());
  for (const Primitive& primitive : offer.primitives)
    EXPECT_LT(primitive.workspace_bytes, cpu_device().threads * (std::int64_t{2} << 20));
}

}  // namespace
}  // namespace torchalgo

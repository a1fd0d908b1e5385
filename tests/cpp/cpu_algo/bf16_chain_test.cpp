// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

constexpr const char* kName = "cpu.bf16_chain";
constexpr double kMaxRelError = 1e-5;  // for bf16 the check allows what rounding causes

std::string pointwise(int k, const std::string& epilogue = "+bias+relu6") {
  return fmt::format("_k{}r1s1_st1x1_pad0x0_dil1x1_g1{}", k, epilogue);
}
std::string depthwise(int c, int taps, int stride, const std::string& epilogue = "+bias+relu6") {
  return fmt::format("_k{0}r{1}s{1}_st{2}x{2}_pad{3}x{3}_dil1x1_g{0}{4}", c, taps, stride, taps / 2,
                     epilogue);
}
Problem chain(const std::string& src, const std::vector<std::string>& filters) {
  std::string text = "chain_f32_" + src;
  for (const std::string& each : filters) text += each;
  return parse_problem(text);
}

TEST(Bf16Chain, AgreesWithF64OnInvertedResidualsOfAnySize) {
  for (const int taps : {3, 5}) {
    for (const int stride : {1, 2}) {
      for (const int size : {1, 2, 7, 15}) {
        expect_correct(kName,
                       chain(fmt::format("n3c24h{}w{}", size, size + 1),
                             {pointwise(40), depthwise(40, taps, stride), pointwise(24, "+bias")}),
                       1, kMaxRelError);
      }
    }
  }
}

// Rows that a block hands on to the next one, images of a batch, a stride that steps over rows.
TEST(Bf16Chain, AgreesWithF64WhereTheImageIsCutIntoBlocks) {
  for (const char* rest :
       {"st1x1_pad1x1_dil1x1", "st2x2_pad1x1_dil1x1", "st4x1_pad0x0_dil1x1", "st1x1_pad4x4_dil3x2",
        "st1x2_pad0x1_dil2x1", "st2x2_pad0x0x1x1_dil1x1", "st1x1_pad3x0x0x2_dil1x1"}) {
    for (const int n : {1, 3}) {
      expect_correct(kName,
                     chain(fmt::format("n{}c16h61w50", n),
                           {pointwise(144), fmt::format("_k144r3s3_{}_g144+bias", rest),
                            pointwise(17, "+bias+hardswish")}),
                     1, kMaxRelError);
    }
  }
}

TEST(Bf16Chain, AgreesWithF64OnHalvesOfAnInvertedResidual) {
  expect_correct(kName,
                 chain("n2c20h30w31", {pointwise(72, ""), depthwise(72, 3, 2, "+bias+hardswish")}),
                 1, kMaxRelError);
  expect_correct(kName, chain("n1c72h161w50", {depthwise(72, 5, 1, ""), pointwise(21, "+relu")}), 1,
                 kMaxRelError);
}

TEST(Bf16Chain, AddsAResidualAndAppliesEachActivation) {
  for (const char* act : {"+relu", "+hardswish", "+silu", "+leaky_relu0.1"}) {
    const std::string epilogue = std::string("+bias") + act, last = std::string("+bias+add") + act;
    expect_correct(kName,
                   chain("n1c20h14w14", {pointwise(48, epilogue), depthwise(48, 3, 1, epilogue),
                                         pointwise(20, last)}),
                   1, kMaxRelError);
    expect_correct(kName,
                   chain("n1c20h14w14", {pointwise(48, epilogue), depthwise(48, 3, 1, last)}), 1,
                   kMaxRelError);
  }
}

TEST(Bf16Chain, IsOfferedWhereItIsFastAndRefusesWhatItCannotRun) {
  const Algorithm algorithm = cpu_algorithm(kName);
  Device device = cpu_device();
  device.bf16_isa = "";
  const Problem block = chain("n1c24h8w8", {pointwise(40), depthwise(40, 3, 1)});
  EXPECT_EQ(algorithm.offer(block, device).refusal,
            "needs a processor with AMX, or one of AMD with AVX512_BF16");
  EXPECT_EQ(offer_all(algorithm, block, device).primitives.size(), 1U);
  for (const Problem& problem :
       {parse_problem("fwd_f32_n1c32h8w8_k32r1s1_st1x1_pad0x0_dil1x1_g1"),
        chain("n1c32h8w8", {pointwise(32), pointwise(32)}),
        chain("n1c8h8w8", {pointwise(8), depthwise(8, 3, 1)}),
        chain("n1c29h8w8", {pointwise(32), depthwise(32, 3, 1)}),
        chain("n1c32h8w8", {"_k32r3s3_st1x1_pad1x1_dil1x1_g1", depthwise(32, 3, 1)}),
        chain("n1c3h8w8", {"_k32r3s3_st1x1_pad1x1_dil1x1_g1", depthwise(32, 3, 1)})}) {
    EXPECT_NE(algorithm.offer(problem, device_with_bf16()).refusal, "") << to_string(problem);
  }
}

}  // namespace
}  // namespace torchalgo

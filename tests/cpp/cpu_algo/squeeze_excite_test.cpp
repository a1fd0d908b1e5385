// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

constexpr double kMaxRelError = 2e-6;

std::string pointwise(int k, const char* epilogue) {
  return fmt::format("_k{}r1s1_st1x1_pad0x0_dil1x1_g1{}", k, epilogue);
}

Problem chain(const std::string& src, const std::string& convs) {
  return parse_problem("chain_f32_" + src + "_avgpool" + convs);
}

TEST(SqueezeExcite, AgreesWithF64OnAnySize) {
  for (const char* src :
       {"n1c1h1w1", "n1c24h7w5", "n3c40h14w9", "n2c150h1w37", "n4c48h3w3", "n1c672h14w14"}) {
    for (const int squeezed : {1, 8, 30, 168}) {
      expect_correct("cpu.squeeze_excite",
                     chain(src, pointwise(squeezed, "+bias+relu") + pointwise(75, "+bias+sigmoid")),
                     4, kMaxRelError);
    }
    expect_correct("cpu.squeeze_excite", chain(src, pointwise(33, "")), 4, kMaxRelError);
  }
}

TEST(SqueezeExcite, AppliesEachActivationAndKeepsPadLanesZero) {
  for (const char* act : {"", "+relu6", "+hardswish", "+silu", "+sigmoid", "+hardsigmoid",
                          "+leaky_relu0.1", "+clamp-1x2"}) {
    const std::string epilogue = std::string("+bias") + act;
    expect_correct(
        "cpu.squeeze_excite",
        chain("n2c20h9w9", pointwise(12, epilogue.c_str()) + pointwise(20, epilogue.c_str())), 4,
        kMaxRelError);
  }
}

TEST(SqueezeExcite, RefusesWhatItCannotRun) {
  const Algorithm row = cpu_algorithm("cpu.squeeze_excite");
  for (const char* text : {
           "fwd_f32_n1c8h1w1_k8r1s1_st1x1_pad0x0_dil1x1_g1",
           "avgpool_f32_n1c8h8w8_p1q1",
           "chain_f32_n1c8h8w8_mul_k8r1s1_st1x1_pad0x0_dil1x1_g1",
           "chain_f32_n1c8h8w8_avgpool_k8r1s1_st1x1_pad0x0_dil1x1_g2",
           "chain_f32_n1c8h8w8_avgpool_k8r3s3_st1x1_pad1x1_dil1x1_g1",
           "chain_f32_n1c8h8w8_avgpool_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias+add",
           "chain_f32_n33c8h8w8_avgpool_k8r1s1_st1x1_pad0x0_dil1x1_g1",
           "chain_f16_n1c8h8w8_avgpool_k8r1s1_st1x1_pad0x0_dil1x1_g1",
       }) {
    EXPECT_NE(row.offer(parse_problem(text), cpu_device()).refusal, "") << text;
  }
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

constexpr double kMaxRelError = 2e-6;

Problem scaled(const std::string& src, const char* head, int k, const char* epilogue) {
  return parse_problem(
      fmt::format("chain_f32_{}_{}_k{}r1s1_st1x1_pad0x0_dil1x1_g1{}", src, head, k, epilogue));
}

TEST(ScaledConv1x1, AgreesWithF64OnAnySize) {
  struct Source {
    const char* text;
    std::size_t halved;  // primitives that halve 64 output channels
  };
  for (const char* head : {"mul", "scaleshift+relu"}) {
    for (const auto& [src, halved] :
         {Source{"n1c1h1w1", 0}, Source{"n1c24h7w5", 0}, Source{"n3c40h14w9", 0},
          Source{"n2c150h1w37", 2}, Source{"n1c72h56w56", 2}, Source{"n2c128h9w9", 4}}) {
      for (const int k : {1, 24, 64}) {
        expect_correct("cpu.scaled_conv1x1", scaled(src, head, k, "+bias+relu"),
                       4 + (k == 64 ? halved : 0), kMaxRelError);
      }
    }
  }
}

TEST(ScaledConv1x1, AppliesEachActivationAndAddsAResidual) {
  for (const char* act : {"", "+relu6", "+hardswish", "+silu", "+sigmoid", "+hardsigmoid",
                          "+leaky_relu0.1", "+clamp-1x2"}) {
    const std::string head = std::string("scaleshift") + act;
    const std::string epilogue = std::string("+bias+add") + act;
    expect_correct("cpu.scaled_conv1x1", scaled("n2c20h9w9", head.c_str(), 50, epilogue.c_str()), 4,
                   kMaxRelError);
  }
}

TEST(ScaledConv1x1, RefusesWhatItCannotRun) {
  const Algorithm row = cpu_algorithm("cpu.scaled_conv1x1");
  for (const char* text : {
           "fwd_f32_n1c8h8w8_k8r1s1_st1x1_pad0x0_dil1x1_g1",
           "chain_f32_n1c8h8w8_mul_k8r3s3_st1x1_pad1x1_dil1x1_g1",
           "chain_f32_n1c8h8w8_mul_k8r1s1_st2x2_pad0x0_dil1x1_g1",
           "chain_f32_n1c8h8w8_mul_k8r1s1_st1x1_pad0x0_dil1x1_g2",
           "chain_f16_n1c8h8w8_mul_k8r1s1_st1x1_pad0x0_dil1x1_g1",
           "chain_f32_n1c8h8w8_k8r1s1_st1x1_pad0x0_dil1x1_g1_k8r3s3_st1x1_pad1x1_dil1x1_g8",
       }) {
    EXPECT_NE(row.offer(parse_problem(text), cpu_device()).refusal, "") << text;
  }
}

}  // namespace
}  // namespace torchalgo

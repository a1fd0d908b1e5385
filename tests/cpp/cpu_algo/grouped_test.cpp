// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

constexpr double kMaxRelError = 2e-6;

Problem grouped(const std::string& src, int c, int width, int stride, int pad,
                const char* epilogue) {
  return parse_problem(fmt::format("fwd_f32_{}_k{}r3s3_st{}x{}_pad{}x{}_dil1x1_g{}{}", src, c,
                                   stride, stride, pad, pad, c / width, epilogue));
}

TEST(Grouped, AgreesWithF64OnImagesOfAnySize) {
  for (const int width : {2, 4, 8, 16}) {
    for (const int stride : {1, 2}) {
      for (const char* sizes : {"h3w3", "h1w1", "h2w6", "h7w7", "h8w9", "h15w14", "h5w23"}) {
        const std::string src = fmt::format("n2c48{}", sizes);
        expect_correct("cpu.grouped", grouped(src, 48, width, stride, 1, "+bias"), 2, kMaxRelError);
      }
    }
  }
}

TEST(Grouped, AgreesWithF64OnAnyPaddingAndNumberOfBlocks) {
  for (const int pad : {0, 2, 3}) {
    expect_correct("cpu.grouped", grouped("n1c40h9w11", 40, 8, 1, pad, ""), 2, kMaxRelError);
    expect_correct("cpu.grouped", grouped("n1c20h9w17", 20, 4, 2, pad, ""), 2, kMaxRelError);
    expect_correct("cpu.grouped", grouped("n1c8h9w12", 8, 4, 1, pad, "+bias"), 1, kMaxRelError);
  }
  for (const char* const rest : {"st2x2_pad0x0x1x1", "st1x1_pad2x1x0x3"}) {
    const std::string text = fmt::format("fwd_f32_n1c40h9w16_k40r3s3_{}_dil1x1_g5+bias", rest);
    expect_correct("cpu.grouped", parse_problem(text), 2, kMaxRelError);
  }
  expect_correct("cpu.grouped", grouped("n1c104h28w28", 104, 8, 1, 1, "+bias+relu"), 2,
                 kMaxRelError);
}

TEST(Grouped, AppliesEachActivationAndAddsAResidual) {
  for (const char* act : {"", "+relu6", "+hardswish", "+silu", "+sigmoid", "+hardsigmoid",
                          "+leaky_relu0.1", "+clamp-1x2"}) {
    const std::string epilogue = std::string("+bias+add") + act;
    expect_correct("cpu.grouped", grouped("n2c24h9w9", 24, 8, 1, 1, epilogue.c_str()), 2,
                   kMaxRelError);
  }
}

TEST(Grouped, RefusesWhatItCannotRun) {
  const Algorithm row = cpu_algorithm("cpu.grouped");
  for (const char* text : {
           "fwd_f32_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g32",
           "fwd_f32_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g1",
           "fwd_f32_n1c24h8w8_k24r3s3_st1x1_pad1x1_dil1x1_g8",
           "fwd_f32_n1c32h8w8_k64r3s3_st1x1_pad1x1_dil1x1_g8",
           "fwd_f32_n1c32h8w8_k32r5s5_st1x1_pad1x1_dil1x1_g8",
           "fwd_f32_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil2x2_g8",
           "fwd_f32_n1c32h8w8_k32r3s3_st3x3_pad1x1_dil1x1_g8",
           "fwd_f16_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g8",
           "relu_f32_n1c32h8w8",
       }) {
    EXPECT_NE(row.offer(parse_problem(text), cpu_device()).refusal, "") << text;
  }
}

}  // namespace
}  // namespace torchalgo

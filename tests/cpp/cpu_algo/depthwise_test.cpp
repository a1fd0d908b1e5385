// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

std::string depthwise_text(int n, int c, int h, int w, int r, int s, const std::string& rest) {
  return fmt::format("fwd_f32_n{}c{}h{}w{}_k{}r{}s{}_{}", n, c, h, w, c, r, s, rest);
}

void expect_exact(const std::string& text, const std::string& isa) {
  const Problem problem = parse_problem(text);
  const Algorithm row = cpu_algorithm("cpu.depthwise", isa);
  const Offer offer = row.offer(problem, device_with_bf16());
  ASSERT_EQ(offer.refusal, "") << text;
  const bool has_nhwc = std::get<ConvProblem>(problem).c >= 16;
  EXPECT_EQ(offer.primitives.size(), has_nhwc ? 3U : 1U) << text;
  Device without_bf16 = cpu_device();
  without_bf16.bf16_isa = "";  // another kernel runs nhwc.bf16 then
  for (const Device& device : {cpu_device(), without_bf16}) {
    const auto results = check_primitives({row}, problem, offer.primitives, 1e-6, 0, device);
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].failure, "")
          << to_string(offer.primitives[i]) << " " << text << " " << isa << " " << device.bf16_isa;
    }
  }
}

TEST(Depthwise, AgreesWithF64OnImagesOfAnySizeInEveryBuild) {
  for (const std::string& isa : isas()) {
    for (const int taps : {3, 5, 7}) {
      for (const int stride : {1, 2, 3}) {
        for (const int size : {1, 2, 7, 8, 14, 23}) {
          const int pad = taps / 2;
          expect_exact(
              depthwise_text(1, 18, size, size + 1, taps, taps,
                             fmt::format("st{}x{}_pad{}x{}_dil1x1_g18", stride, stride, pad, pad)),
              isa);
        }
      }
    }
  }
}

TEST(Depthwise, AgreesWithF64OnOddFiltersPadsStridesAndDilations) {
  for (const std::string& isa : isas()) {
    for (const char* rest : {
             "st1x1_pad0x0_dil1x1_g48",
             "st1x1_pad2x2_dil1x1_g48",
             "st1x1_pad4x1_dil1x1_g48",
             "st2x1_pad1x3_dil1x1_g48",
             "st1x2_pad0x1_dil1x1_g48",
             "st1x1_pad2x2_dil2x2_g48",
             "st2x2_pad4x3_dil3x2_g48",
             "st1x1_pad2x1_dil2x1_g48",
             "st1x1_pad9x9_dil1x1_g48",
             "st2x2_pad0x0x1x1_dil1x1_g48",
             "st1x1_pad2x0x0x3_dil1x1_g48",
         }) {
      expect_exact(depthwise_text(2, 48, 13, 17, 3, 3, rest), isa);
      expect_exact(depthwise_text(1, 48, 13, 19, 1, 5, rest), isa);
      expect_exact(depthwise_text(1, 48, 11, 12, 4, 2, rest), isa);
    }
  }
}

TEST(Depthwise, FusesEveryActivationAfterTheResidualAndLeavesPadLanesZero) {
  for (const std::string& isa : isas()) {
    for (const char* activation : {"relu", "relu6", "hardswish", "silu", "sigmoid", "hardsigmoid",
                                   "leaky_relu0.1", "clamp-1x2"}) {
      for (const char* before : {"", "+bias", "+add", "+bias+add"}) {
        for (const int c : {5, 19}) {
          expect_exact(
              depthwise_text(2, c, 9, 10, 3, 3,
                             fmt::format("st1x1_pad1x1_dil1x1_g{}{}+{}", c, before, activation)),
              isa);
        }
      }
    }
  }
}

TEST(Depthwise, GivesTheSameBitsOnAnyNumberOfThreads) {
  const Problem problem =
      parse_problem(depthwise_text(2, 72, 56, 56, 3, 3, "st1x1_pad1x1_dil1x1_g72+bias+relu6"));
  const Sample sample = make_sample(problem, 3);
  const Algorithm row = cpu_algorithm("cpu.depthwise");
  const int threads = at::get_num_threads();
  for (const Primitive& primitive : row.offer(problem, device_with_bf16()).primitives) {
    at::set_num_threads(1);
    const at::Tensor expected = run_once(row, problem, primitive, sample);
    at::set_num_threads(3);
    EXPECT_TRUE(expected.equal(run_once(row, problem, primitive, sample))) << to_string(primitive);
    at::set_num_threads(threads);
  }
}

TEST(Depthwise, RefusesWithAReason) {
  const auto refusal = [](const std::string& text) {
    return cpu_algorithm("cpu.depthwise").offer(parse_problem(text), cpu_device()).refusal;
  };
  EXPECT_EQ(refusal("fwd_f32_n1c16h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g16"),
            "needs one output channel per channel, got 32 of 16");
  EXPECT_EQ(refusal("fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g4"),
            "needs groups equal to the 16 channels, got 4");
  EXPECT_NE(refusal("fwd_f64_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g16"), "");
  EXPECT_NE(refusal("bwd_filter_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g16"), "");
  EXPECT_NE(refusal("linear_f32_n1c16_k16"), "");
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

constexpr const char* kName = "cpu.bf16_conv";
constexpr double kMaxRelError = 1e-5;  // for bf16 the check allows what rounding causes
constexpr std::size_t kLayouts = 2, kImageLayouts = 4;

Problem conv(const std::string& src, const std::string& rest, const std::string& epilogue = "") {
  return parse_problem(fmt::format("fwd_f32_{}_{}_g1{}", src, rest, epilogue));
}

// Steps of 32 channels, of a divisor of the channels, and of channels with zeros between pixels.
TEST(Bf16Conv, AgreesWithF64ForAnyNumberOfChannels) {
  for (const int c : {5, 16, 24, 29, 40, 58, 64, 144}) {
    for (const int k : {1, 16, 17, 40, 64}) {
      const std::string src = fmt::format("n2c{}h5w13", c);
      expect_correct(kName, conv(src, fmt::format("k{}r1s1_st1x1_pad0x0_dil1x1", k), "+bias"),
                     kLayouts, kMaxRelError);
      expect_correct(kName, conv(src, fmt::format("k{}r3s3_st1x1_pad1x1_dil1x1", k), "+bias+relu"),
                     kLayouts, kMaxRelError);
    }
  }
}

// A tile has at most 16 rows. Wide images are copied row by row, narrow ones column by column.
TEST(Bf16Conv, AgreesWithF64OnImagesOfAnySize) {
  for (const char* sizes : {"h1w1", "h3w3", "h1w7", "h7w7", "h2w11", "h3w12", "h5w16", "h9w17",
                            "h14w14", "h3w33", "h17w1", "h6w47"}) {
    const std::string src = fmt::format("n2c32{}", sizes);
    for (const char* rest : {"k33r1s1_st1x1_pad0x0_dil1x1", "k33r1s1_st2x2_pad0x0_dil1x1",
                             "k33r3s3_st1x1_pad1x1_dil1x1", "k33r3s3_st2x2_pad1x1_dil1x1"}) {
      expect_correct(kName, conv(src, rest, "+bias+add+relu"), kLayouts, kMaxRelError);
    }
  }
}

TEST(Bf16Conv, AgreesWithF64ForAnyFilter) {
  for (const char* rest :
       {"k20r1s7_st1x1_pad0x3_dil1x1", "k20r7s1_st1x1_pad3x0_dil1x1", "k20r5s5_st1x1_pad2x2_dil1x1",
        "k20r2s4_st3x2_pad0x1_dil1x1", "k20r3s3_st1x1_pad2x2_dil2x2", "k20r3s3_st2x3_pad3x2_dil3x2",
        "k20r1s1_st1x1_pad1x2_dil1x1", "k20r1s1_st3x1_pad0x0_dil1x1",
        "k20r3s3_st2x2_pad0x0x1x1_dil1x1", "k20r3s3_st1x1_pad2x1x0x3_dil1x1"}) {
    for (const char* src : {"n1c24h9w30", "n2c24h13w9"})
      expect_correct(kName, conv(src, rest, "+bias"), kLayouts, kMaxRelError);
  }
}

TEST(Bf16Conv, ReadsAnImageInF32) {
  for (const char* rest : {"k64r7s7_st2x2_pad3x3_dil1x1", "k24r3s3_st2x2_pad1x1_dil1x1",
                           "k24r11s11_st4x4_pad2x2_dil1x1", "k24r1s1_st1x1_pad0x0_dil1x1",
                           "k24r3s3_st1x1_pad2x2_dil2x2"}) {
    for (const char* src : {"n2c3h45w61", "n1c1h19w19", "n1c4h12w13"})
      expect_correct(kName, conv(src, rest, "+bias+relu"), kImageLayouts, kMaxRelError);
  }
}

TEST(Bf16Conv, AppliesEachActivationAndAddsAResidual) {
  for (const char* act : {"", "+relu", "+relu6", "+hardswish", "+silu", "+sigmoid", "+hardsigmoid",
                          "+gelu", "+leaky_relu0.1", "+clamp-1x2"}) {
    const std::string epilogue = std::string("+bias+add") + act;
    for (const int k : {32, 40}) {
      const std::string rest = fmt::format("k{}r3s3_st1x1_pad1x1_dil1x1", k);
      expect_correct(kName, conv("n2c24h9w14", rest, epilogue), kLayouts, kMaxRelError);
    }
  }
}

// Weights of 768 KiB and more are multiplied run by run. Threads divide the output channels.
TEST(Bf16Conv, AgreesWithF64OnLargeWeights) {
  expect_correct(kName, conv("n1c256h7w7", "k200r3s3_st1x1_pad1x1_dil1x1", "+bias+relu"), kLayouts,
                 kMaxRelError);
  expect_correct(kName, conv("n3c512h7w7", "k800r1s1_st1x1_pad0x0_dil1x1", "+bias+add"), kLayouts,
                 kMaxRelError);
  expect_correct(kName, conv("n2c256h25w25", "k200r3s3_st2x2_pad1x1_dil1x1"), kLayouts,
                 kMaxRelError);
}

// The build for every processor, and the one of this processor: both read the same packed weights.
TEST(Bf16Conv, IsTheSameWithAndWithoutInstructionsForBf16) {
  if (cpu_device().bf16_isa.empty()) GTEST_SKIP() << "needs a processor that multiplies in bf16";
  const Algorithm algorithm = cpu_algorithm(kName);
  for (const char* rest : {"k40r1s1_st1x1_pad0x0_dil1x1", "k40r3s3_st1x1_pad1x1_dil1x1",
                           "k40r3s3_st2x2_pad1x1_dil1x1"}) {
    for (const char* src : {"n2c64h13w17", "n1c58h7w7"}) {
      const Problem problem = conv(src, rest, "+bias+relu");
      const Sample sample = make_sample(problem, 0);
      const Primitive primitive = {kName, Layout::kNhwcBf16, Layout::kNhwc};
      const auto result = [&](const std::string& bf16_isa) {
        Device device = cpu_device();
        device.bf16_isa = bf16_isa;
        const Kernel kernel = algorithm.prepare(problem, primitive, device);
        const at::Tensor dst = empty_result(problem, Layout::kNhwc);
        const at::Tensor workspace =
            at::full({kernel.primitive.workspace_bytes}, 0, at::TensorOptions().dtype(at::kByte));
        const std::vector<at::Tensor> src = {to_layout(sample.src[0], Layout::kNhwcBf16)};
        kernel.run({pack(kernel, sample.weights), src, {}, dst, workspace.data_ptr()});
        return dst;
      };
      const at::Tensor own = result(cpu_device().bf16_isa), plain = result("");
      EXPECT_LT(at::linalg_vector_norm(own - plain).item<double>(),
                1e-6 * at::linalg_vector_norm(plain).item<double>())
          << to_string(problem);
    }
  }
}

// With a stride, several convolutions write the pixels of a result in turns.
TEST(Bf16Conv, ComputesGradientsOfInputs) {
  for (const char* rest : {"k33r1s1_st1x1_pad0x0_dil1x1", "k33r3s3_st1x1_pad1x1_dil1x1",
                           "k20r5s5_st1x1_pad2x2_dil1x1", "k33r3s3_st2x2_pad1x1_dil1x1",
                           "k33r1s1_st2x2_pad0x0_dil1x1", "k20r3s2_st2x1_pad1x0_dil1x1"}) {
    for (const char* src : {"n2c24h9w30", "n1c7h14w13"}) {
      const Problem problem = parse_problem(fmt::format("bwd_data_f32_{}_{}_g1", src, rest));
      expect_correct(kName, problem, kLayouts, kMaxRelError);
    }
  }
}

TEST(Bf16Conv, IsOfferedWhereItIsFastAndRefusesWhatItCannotRun) {
  const Algorithm algorithm = cpu_algorithm(kName);
  const Problem problem = conv("n1c32h8w8", "k32r3s3_st1x1_pad1x1_dil1x1");
  Device device = cpu_device();
  device.bf16_isa = "";
  EXPECT_EQ(algorithm.offer(problem, device).refusal,
            "needs a processor with AMX, or one of AMD with AVX512_BF16");
  EXPECT_EQ(offer_all(algorithm, problem, device).primitives.size(), kLayouts);
  for (const char* text : {
           "fwd_f32_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g2",
           "fwd_f16_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g1",
           "bwd_filter_f32_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g1",
           "bwd_data_f32_n1c32h8w8_k32r3s3_st1x1_pad3x1_dil1x1_g1",
           "fwd_f32_n1c4d5h7w7_k6t3r3s3_st1x2x2_pad1x1x1_dil1x1x1_g1",
           "relu_f32_n1c32h8w8",
       }) {
    EXPECT_NE(algorithm.offer(parse_problem(text), device_with_bf16()).refusal, "") << text;
  }
}

}  // namespace
}  // namespace torchalgo

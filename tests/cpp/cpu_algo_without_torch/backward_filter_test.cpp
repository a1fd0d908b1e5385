// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "cpu_algo_without_torch/plain.h"

namespace torchalgo::cpu {
namespace {

// Returns the gradient of element (k, c, r, s) of the weights by plain loops.
double gradient(const ConvProblem& conv, const std::vector<float>& src,
                const std::vector<float>& diff_dst, std::int64_t k, std::int64_t c, std::int64_t r,
                std::int64_t s) {
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  const std::int64_t depth = conv.c / conv.groups;
  const std::int64_t channel = k / (conv.k / conv.groups) * depth + c;
  double sum = 0;
  for (std::int64_t i = 0; i < conv.n * dst[2] * dst[3]; ++i) {
    const std::int64_t n = i / (dst[2] * dst[3]), y = i / dst[3] % dst[2], x = i % dst[3];
    const std::int64_t row = y * conv.stride_h + r - conv.pad_h;
    const std::int64_t column = x * conv.stride_w + s - conv.pad_w;
    if (row < 0 || row >= conv.h || column < 0 || column >= conv.w) continue;
    sum += static_cast<double>(src[((n * conv.c + channel) * conv.h + row) * conv.w + column]) *
           static_cast<double>(diff_dst[((n * conv.k + k) * dst[2] + y) * dst[3] + x]);
  }
  return sum;
}

std::vector<double> gradients(const ConvProblem& conv, const std::vector<float>& src,
                              const std::vector<float>& diff_dst) {
  std::vector<double> all;
  for (std::int64_t k = 0; k < conv.k; ++k)
    for (std::int64_t c = 0; c < conv.c / conv.groups; ++c)
      for (std::int64_t r = 0; r < conv.r; ++r)
        for (std::int64_t s = 0; s < conv.s; ++s)
          all.push_back(gradient(conv, src, diff_dst, k, c, r, s));
  return all;
}

// A gradient with its inputs in nchw, whose numbers come from the forward problem.
struct PlainGradient {
  PlainConv forward;
  std::vector<float> diff_dst;
  std::vector<double> expected;

  explicit PlainGradient(const std::string& text) : forward("fwd" + text) {
    for (const double value : forward.dst) diff_dst.push_back(static_cast<float>(value));
    expected = gradients(forward.conv, forward.src, diff_dst);
  }
};

void expect_right(const PlainGradient& plain, const Bound& bound) {
  const ConvProblem& conv = plain.forward.conv;
  Floats src = in_layout(plain.forward.src, bound.primitive.src, conv.n, conv.c, conv.h * conv.w);
  Floats diff_dst =
      in_layout(plain.diff_dst, bound.primitive.dst, conv.n, conv.k, plain.forward.pixels());
  Floats dst(static_cast<std::int64_t>(plain.expected.size()));
  run_plain(bound.kernel, {src.data(), diff_dst.data()}, {}, dst);
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < plain.expected.size(); ++i) {
    const double difference = dst.data()[i] - plain.expected[i];
    error += difference * difference;
    norm += plain.expected[i] * plain.expected[i];
  }
  EXPECT_LE(std::sqrt(error), 2e-6 * bound.rounding * std::sqrt(norm)) << bound.what;
}

TEST(WithoutTorchBackwardFilter, EveryPrimitiveAgreesWithPlainLoops) {
  std::set<std::string> names;
  for (const std::string text : {"_f32_n1c17h9w11_k33r3s3_st1x1_pad1x1_dil1x1_g1",
                                 "_f32_n2c32h14w14_k48r3s3_st1x1_pad0x2_dil1x1_g1",
                                 "_f32_n2c8h40w37_k16r3s3_st1x1_pad1x1_dil1x1_g1",
                                 "_f32_n1c32h9w11_k96r3s3_st1x1_pad1x1_dil1x1_g2",
                                 "_f32_n3c32h7w7_k48r1s1_st1x1_pad0x0_dil1x1_g1",
                                 "_f32_n2c20h13w12_k16r3s3_st2x2_pad1x1_dil1x1_g1",
                                 "_f32_n1c32h9w11_k96r3s5_st1x2_pad1x0_dil1x1_g2",
                                 "_f32_n2c3h19w21_k33r7s5_st2x2_pad3x1_dil1x1_g1",
                                 "_f32_n2c37h19w21_k37r3s3_st2x2_pad1x1_dil1x1_g37",
                                 "_f32_n3c32h9w8_k32r5s5_st1x1_pad2x2_dil1x1_g32"}) {
    const PlainGradient plain(text);
    for (const Bound& bound : all_bound(parse_problem("bwd_filter" + text))) {
      expect_right(plain, bound);
      names.insert(bound.primitive.name);
    }
  }
  for (const char* const name : {"cpu.outer_product", "cpu.stem_backward_filter",
                                 "cpu.depthwise_backward_filter", "cpu.winograd_f3x3_4x4.t64"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

}  // namespace
}  // namespace torchalgo::cpu

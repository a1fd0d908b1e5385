// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <string>

#include "aten_algo/list.h"
#include "profiler/check.h"
#include "provider/cpu_device.h"

namespace torchalgo {
namespace {

const Algorithm& fft() { return *find_algorithm(aten_algorithms(), "cpu.fft"); }

std::string refusal_of(const std::string& text) {
  return fft().offer(parse_problem(text), cpu_device()).refusal;
}

TEST(Fft, AgreesWithF64InEveryTileSize) {
  for (const char* text : {
           "fwd_f32_n1c3h9w11_k5r7s7_st1x1_pad3x3_dil1x1_g1+bias+relu",
           "fwd_f32_n2c17h30w13_k20r9s9_st1x1_pad4x4_dil1x1_g1+bias+add+silu",
           "fwd_f32_n1c8h20w40_k12r5s11_st1x1_pad0x7_dil1x1_g1",
           "fwd_f32_n1c4h11w11_k4r11s11_st1x1_pad0x0_dil1x1_g1+bias",
           "fwd_f32_n2c24h29w33_k4r13s13_st1x1_pad6x6_dil1x1_g1+bias+hardswish",
           "fwd_f32_n1c8h20w24_k12r8s10_st1x1_pad3x5x4x4_dil1x1_g1+bias",
           "fwd_f32_n1c3h40w40_k2r31s31_st1x1_pad15x15_dil1x1_g1",
           "bwd_data_f32_n1c4h20w20_k8r16s16_st2x2_pad7x7_dil1x1_g1",
       }) {
    const Problem problem = parse_problem(text);
    const Algorithm& row = fft();
    const Offer offer = row.offer(problem, cpu_device());
    ASSERT_EQ(offer.refusal, "") << text;
    EXPECT_GE(offer.primitives.size(), 1U) << text;
    const auto results = check_primitives({row}, problem, offer.primitives, 4e-6);
    for (std::size_t i = 0; i < results.size(); ++i)
      EXPECT_EQ(results[i].failure, "") << offer.primitives[i].name << " " << text;
  }
}

TEST(Fft, OffersTilesUpToTheImage) {
  const auto names = [](const std::string& text) {
    std::string all;
    for (const Primitive& primitive : fft().offer(parse_problem(text), cpu_device()).primitives)
      all += primitive.name.substr(primitive.name.rfind('.') + 1) + " ";
    return all;
  };
  EXPECT_EQ(names("fwd_f32_n1c8h14w14_k8r7s7_st1x1_pad3x3_dil1x1_g1"), "t16 t24 ");
  EXPECT_EQ(names("fwd_f32_n1c8h56w56_k8r31s31_st1x1_pad15x15_dil1x1_g1"), "t48 t64 t96 ");
}

TEST(Fft, RefusesWithAReason) {
  EXPECT_EQ(refusal_of("fwd_bf16_n1c8h14w14_k8r7s7_st1x1_pad3x3_dil1x1_g1"),
            "is f32 only, got bf16");
  EXPECT_EQ(refusal_of("fwd_f32_n1c8h14w14_k8r5s5_st1x1_pad2x2_dil1x1_g1"),
            "needs a filter of at least 7x7, got 5x5");
  EXPECT_EQ(refusal_of("fwd_f32_n1c8h14w14_k8r7s7_st2x1_pad3x3_dil1x1_g1"),
            "needs stride 1, got 2x1");
  EXPECT_EQ(refusal_of("fwd_f32_n1c8h14w14_k8r7s7_st1x2_pad3x3_dil1x1_g1"),
            "needs stride 1, got 1x2");
  EXPECT_EQ(refusal_of("fwd_f32_n1c8h20w20_k8r7s7_st1x1_pad3x3_dil2x2_g1"),
            "needs dilation 1, got 2x2");
  EXPECT_EQ(refusal_of("fwd_f32_n1c8h14w14_k8r7s7_st1x1_pad3x3_dil1x1_g2"), "needs 1 group, got 2");
  EXPECT_EQ(refusal_of("fwd_f32_n1c8h99w99_k8r99s99_st1x1_pad0x0_dil1x1_g1"),
            "needs a filter of at most 85 rows and columns, got 99x99");
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cpu_algo_without_torch/plain.h"

namespace torchalgo::cpu {
namespace {

const char* const kProblems[] = {
    "fwd_f32_n1c17h9w11_k33r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu",
    "fwd_f32_n2c32h14w14_k48r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_f32_n2c16h40w37_k16r3s3_st1x1_pad1x1_dil1x1_g1",  // several blocks of tiles
    "fwd_f32_n2c32h14w14_k64r1s1_st1x1_pad0x0_dil1x1_g1",
    "fwd_f32_n1c72h7w5_k104r1s1_st1x1_pad0x0_dil1x1_g1+bias",
    "fwd_f32_n1c32h13w12_k32r3s3_st2x1_pad1x0_dil1x2_g2+bias+relu",
    "fwd_f32_n1c32h13w12_k40r2s2_st1x1_pad0x0x1x1_dil1x1_g1+bias+relu",
    "fwd_f32_n1c16h13w12_k20r3s3_st2x2_pad1x1_dil1x1_g1+bias",
    "fwd_f32_n1c20h13w12_k16r5s5_st1x1_pad2x2_dil1x1_g1+relu",
    "fwd_f32_n1c20h6w21_k33r1s7_st1x1_pad0x3_dil1x1_g1+bias",
    "fwd_f32_n1c32h9w11_k96r3s3_st1x1_pad1x1_dil1x1_g2+bias",
    "fwd_f32_n1c3h19w21_k33r7s7_st2x2_pad3x3_dil1x1_g1+bias+relu",
    "fwd_f32_n1c40h9w11_k40r3s3_st1x1_pad1x1_dil1x1_g40+bias+relu",
    "fwd_f32_n2c17h12w7_k17r5s5_st2x2_pad2x2_dil1x1_g17",
    "fwd_f32_n1c32h9w9_k32r3s3_st1x1_pad2x2_dil2x2_g32+bias+add",
    "fwd_f32_n1c32h16w16_k32r9s9_st1x1_pad4x4_dil1x1_g32+bias+relu",
    "fwd_f32_n1c24h5w30_k24r1s11_st1x1_pad0x5_dil1x1_g24+bias",
    "fwd_f32_n2c24h23w9_k24r11s1_st1x1_pad5x0_dil1x1_g24",
    "fwd_f32_n1c16h21w22_k16r7s7_st2x2_pad3x3_dil1x1_g16+relu",
    "fwd_f32_n1c16h30w40_k16r3s3_st2x2_pad12x12_dil12x12_g16",
    "fwd_f32_n1c16h3w2_k16r9s9_st1x1_pad4x4_dil1x1_g16",
    "fwd_f32_n1c48h9w11_k48r3s3_st1x1_pad1x1_dil1x1_g6+bias+relu",
};

TEST(WithoutTorchConv, EveryPrimitiveAgreesWithPlainLoops) {
  std::set<std::string> names;
  for (const char* const text : kProblems) {
    const PlainConv plain(text);
    for (const Bound& bound : all_bound(plain.conv)) {
      expect_right(plain, bound);
      names.insert(bound.primitive.name.substr(0, bound.primitive.name.find('.', 4)));
    }
  }
  for (const char* const name :
       {"cpu.conv1x1", "cpu.strassen_1x1", "cpu.direct", "cpu.stem", "cpu.im2col_gemm",
        "cpu.im2row_gemm", "cpu.depthwise", "cpu.grouped", "cpu.winograd_f4x4_3x3",
        "cpu.winograd_f4x4_3x3_nhwc", "cpu.winograd_f4x4_5x5"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

}  // namespace
}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/depthwise.h"

#include "cpu_algo/kernels/grouped.h"
#include "standalone/plain_conv.h"

namespace torchalgo::cpu {
namespace {

void expect_right_in_both_layouts(const char* text, DepthwiseRun run, const std::string& isa) {
  const PlainConv plain(text);
  for (const Layout layout : {Layout::kNChw16c, Layout::kNhwc}) {
    expect_right(plain, bind_depthwise(plain.conv, layout, run, 2), layout, layout, 1e-6,
                 std::string(text) + " " + isa);
  }
}

TEST(StandaloneDepthwise, AgreesWithPlainLoopsInEveryLayoutAndBuild) {
  for (const std::string& isa : isas()) {
    const DepthwiseRun run = TORCHALGO_PICK_KERNEL(isa, run_depthwise);
    for (const char* const text : {"fwd_f32_n1c40h9w11_k40r3s3_st1x1_pad1x1_dil1x1_g40+bias+relu",
                                   "fwd_f32_n2c17h12w7_k17r5s5_st2x2_pad2x2_dil1x1_g17",
                                   "fwd_f32_n1c32h9w9_k32r3s3_st1x1_pad2x2_dil2x2_g32+bias+add",
                                   "fwd_f32_n1c32h16w16_k32r9s9_st1x1_pad4x4_dil1x1_g32+bias+relu",
                                   "fwd_f32_n1c24h5w30_k24r1s11_st1x1_pad0x5_dil1x1_g24+bias",
                                   "fwd_f32_n2c24h23w9_k24r11s1_st1x1_pad5x0_dil1x1_g24",
                                   "fwd_f32_n1c16h21w22_k16r7s7_st2x2_pad3x3_dil1x1_g16+relu",
                                   "fwd_f32_n1c16h30w40_k16r3s3_st2x2_pad12x12_dil12x12_g16",
                                   "fwd_f32_n1c16h3w2_k16r9s9_st1x1_pad4x4_dil1x1_g16"})
      expect_right_in_both_layouts(text, run, isa);
  }
}

TEST(StandaloneDepthwise, ComputesNarrowGroups) {
  for (const std::string& isa : isas()) {
    expect_right_in_both_layouts("fwd_f32_n1c48h9w11_k48r3s3_st1x1_pad1x1_dil1x1_g6+bias+relu",
                                 TORCHALGO_PICK_KERNEL(isa, run_grouped), isa);
  }
}

}  // namespace
}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/depthwise.h"

#include "cpu_algo/kernels/grouped.h"
#include "standalone/plain_conv.h"

namespace torchalgo::cpu {
namespace {

void expect_right_in_both_layouts(const char* text, DepthwiseRun run, const std::string& isa) {
  const PlainConv plain(text);
  for (const Layout layout : {Layout::kNChw16c, Layout::kNhwc}) {
    expect_right(plain, bind_depthwise(plain.conv, layout, run), layout, layout, 1e-6,
                 std::string(text) + " " + isa);
  }
}

TEST(StandaloneDepthwise, AgreesWithPlainLoopsInEveryLayoutAndBuild) {
  for (const std::string& isa : isas()) {
    const DepthwiseRun run = TORCHALGO_PICK_KERNEL(isa, run_depthwise);
    for (const char* const text : {"fwd_f32_n1c40h9w11_k40r3s3_st1x1_pad1x1_dil1x1_g40+bias+relu",
                                   "fwd_f32_n2c17h12w7_k17r5s5_st2x2_pad2x2_dil1x1_g17",
                                   "fwd_f32_n1c32h9w9_k32r3s3_st1x1_pad2x2_dil2x2_g32+bias+add"})
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

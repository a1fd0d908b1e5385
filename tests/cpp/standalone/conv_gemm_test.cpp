// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/conv_gemm.h"

#include <gtest/gtest.h>

#include "standalone/plain_conv.h"

namespace torchalgo::cpu {
namespace {

const char* const kProblems[] = {
    "fwd_f32_n1c17h9w11_k33r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu",
    "fwd_f32_n2c32h14w14_k64r1s1_st1x1_pad0x0_dil1x1_g1",
    "fwd_f32_n1c72h7w5_k104r1s1_st1x1_pad0x0_dil1x1_g1+bias",
    "fwd_f32_n1c32h13w12_k32r3s3_st2x1_pad1x0_dil1x2_g2+bias+relu",
    "fwd_f32_n1c32h13w12_k40r2s2_st1x1_pad0x0x1x1_dil1x1_g1+bias+relu",
};

TEST(StandaloneConvGemm, AgreesWithPlainLoopsInEveryLayoutWidthAndBuild) {
  for (const char* const text : kProblems) {
    const PlainConv plain(text);
    for (const Layout layout : {Layout::kNChw16c, Layout::kNhwc}) {
      for (const bool strassen : {false, true}) {
        if (strassen && !can_strassen(plain.conv, layout, layout)) continue;
        for (const std::string& isa : isas()) {
          ConvGemmBuild build = conv_gemm_build(isa);
          build.strassen = strassen;
          const std::int64_t blocks = blocks_to_cut(plain.conv, strassen);
          const ConvGemmVariant variant = {layout, layout, default_panel_blocks(blocks, build),
                                           build};
          for (const std::int64_t threads : {1, 3}) {
            expect_right(plain, bind_conv_gemm(variant, plain.conv, threads), layout, layout, 2e-6,
                         std::string(text) + " " + isa);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace torchalgo::cpu

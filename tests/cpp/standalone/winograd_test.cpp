// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/winograd.h"

#include <gtest/gtest.h>

#include "standalone/plain_conv.h"

namespace torchalgo::cpu {
namespace {

const char* const kProblems[] = {
    "fwd_f32_n1c17h9w11_k33r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu",
    "fwd_f32_n2c32h14w14_k48r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_f32_n1c16h13w12_k20r3s3_st2x2_pad1x1_dil1x1_g1+bias",
    "fwd_f32_n1c20h13w12_k16r5s5_st1x1_pad2x2_dil1x1_g1+relu",
    "fwd_f32_n1c20h6w21_k33r1s7_st1x1_pad0x3_dil1x1_g1+bias",
    "fwd_f32_n1c32h9w11_k96r3s3_st1x1_pad1x1_dil1x1_g2+bias",
};

TEST(StandaloneWinograd, AgreesWithPlainLoopsInEveryTileLayoutAndBuild) {
  for (const char* const text : kProblems) {
    const PlainConv plain(text);
    for (const kernels::WinogradTile& tile : kernels::kWinogradTiles) {
      if (tile.h.r != plain.conv.r || tile.w.r != plain.conv.s) continue;
      if (tile.h.stride != plain.conv.stride_h) continue;
      for (const Layout layout : {Layout::kNChw16c, Layout::kNhwc}) {
        for (const std::string& isa : isas()) {
          for (const std::int64_t threads : {1, 3}) {
            const WinogradVariant variant = {tile, layout, 14};
            expect_right(plain, bind_winograd(variant, plain.conv, isa, threads), layout, layout,
                         2e-5, std::string(text) + " " + isa);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace torchalgo::cpu

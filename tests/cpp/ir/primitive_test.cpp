// SPDX-License-Identifier: BSD-3-Clause
#include "ir/primitive.h"

#include <gtest/gtest.h>

namespace torchalgo {
namespace {

TEST(Primitive, NamesTheLayoutOfItsWeightsInAVariant) {
  const std::pair<const char*, const char*> pairs[] = {
      {"aten.conv", "aten.conv.krsc"},
      {"cudnn9.conv.e22{K=1,TILE=3}", "cudnn9.conv.e22.krsc{K=1,TILE=3}"},
      {"cudnn_legacy.fwd.1@fma", "cudnn_legacy.fwd.1.krsc@fma"},
  };
  for (const auto& [kcrs, krsc] : pairs) {
    EXPECT_EQ(with_krsc(kcrs), krsc);
    EXPECT_EQ(without_krsc(krsc), kcrs);
    EXPECT_EQ(without_krsc(kcrs), kcrs);
    EXPECT_EQ(weights_layout({kcrs}), Layout::kNchw);
    EXPECT_EQ(weights_layout({krsc}), Layout::kNhwc);
  }
}

TEST(Primitive, TakesNothingElseForThatVariant) {
  for (const char* name : {"cpu.krscher", "cudnn9.conv.e2{K=.krsc}", "x.krscx.t2"}) {
    EXPECT_EQ(without_krsc(name), name);
    EXPECT_EQ(weights_layout({name}), Layout::kNchw);
  }
  EXPECT_EQ(without_krsc("cpu.a.krsc.t14"), "cpu.a.t14");
}

}  // namespace
}  // namespace torchalgo

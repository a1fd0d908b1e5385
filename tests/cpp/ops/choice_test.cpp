// SPDX-License-Identifier: BSD-3-Clause
#include "ops/choice.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace torchalgo {
namespace {

constexpr DeviceKind kCpu = DeviceKind::kCpu;
constexpr DeviceKind kCuda = DeviceKind::kCuda;

TEST(ParseChoice, ReadsWhatItPrints) {
  for (const char* text :
       {"auto", "free", "1", "cpu.direct", "cudnn9.conv_bias.e22.krsc{SPLIT_K=-1,TILE=2}",
        "cudnn_legacy.bwd_data.1.krsc@fma", "f16:cudnn9.conv.e3;bf16:2;cpu.winograd_f4x4_3x3.t14",
        "f64:free;f32:aten.conv;tf32:aten.conv"}) {
    EXPECT_EQ(to_string(parse_choice(text)), text);
  }
}

TEST(ParseChoice, IgnoresSpacesAroundEntriesAndReadsNothingAsAuto) {
  EXPECT_EQ(to_string(parse_choice("  f16: 7 ;  cpu.direct ")), "f16:7;cpu.direct");
  EXPECT_TRUE(parse_choice("").empty());
  EXPECT_TRUE(parse_choice(" auto ").empty());
}

TEST(ParseChoice, NamesTheTextAndThePlaceAtWhichItStopsBeingAChoice) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"cudnn9", "the end"},
      {"cudnn9..e22", "character 8"},
      {"f8:cpu.direct", "character 1"},
      {"cpu.direct;", "the end"},
      {"cpu.direct;auto", "character 12"},
      {"auto;cpu.direct", "character 1"},
      {"cpu.direct cpu.stem", "character 12"},
      {"cudnn9.conv.e2{A=1", "the end"},
      {"cudnn9.conv.e2{A}", "character 17"},
      {"cudnn9.conv.e2{A=1;B=2}", "character 19"},
      {"-1", "character 1"},
      {"f16:f32:1", "character 8"},
  };
  for (const auto& [text, place] : cases) {
    try {
      static_cast<void>(parse_choice(text));
      ADD_FAILURE() << text << " was read";
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("'" + text + "'"), std::string::npos) << what;
      EXPECT_TRUE(what.ends_with("at " + place)) << what;
    }
  }
}

TEST(Requested, TakesTheFirstEntryThatAppliesToDeviceAndType) {
  const Choice choice = parse_choice(
      "f16:cudnn9.conv.e22;cpu.direct;bf16:aten.conv;cudnn_legacy.fwd.6;aten.prepacked");
  const auto ask = [&](DeviceKind kind, DType dtype) {
    return requested(choice, Direction::kForward, kind, dtype).value_or("");
  };
  EXPECT_EQ(ask(kCuda, DType::kF16), "cudnn9.conv.e22");
  EXPECT_EQ(ask(kCpu, DType::kF16), "cpu.direct");
  EXPECT_EQ(ask(kCuda, DType::kBf16), "aten.conv");
  EXPECT_EQ(ask(kCuda, DType::kTf32), "cudnn_legacy.fwd.6");
}

TEST(Requested, IsNothingWhereNoEntryApplies) {
  EXPECT_FALSE(requested({}, Direction::kForward, kCpu, DType::kF32));
  EXPECT_FALSE(requested(parse_choice("cudnn9.conv.e1;1"), Direction::kForward, kCpu, DType::kF32));
  EXPECT_FALSE(requested(parse_choice("cpu.direct"), Direction::kForward, kCuda, DType::kF32));
  EXPECT_FALSE(requested(parse_choice("f32:aten.conv"), Direction::kForward, kCuda, DType::kTf32));
}

TEST(Requested, TurnsANumberIntoTheLegacyNameOfTheDirection) {
  const Choice choice = parse_choice("1");
  EXPECT_EQ(requested(choice, Direction::kForward, kCuda, DType::kF16), "cudnn_legacy.fwd.1");
  EXPECT_EQ(requested(choice, Direction::kBackwardData, kCuda, DType::kF16),
            "cudnn_legacy.bwd_data.1");
  EXPECT_EQ(requested(choice, Direction::kBackwardFilter, kCuda, DType::kF16),
            "cudnn_legacy.bwd_filter.1");
}

}  // namespace
}  // namespace torchalgo

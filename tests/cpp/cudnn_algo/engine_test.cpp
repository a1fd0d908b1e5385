// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ir/primitive.h"

namespace torchalgo::cudnn {
namespace {

// Specs of all patterns, layouts of weights and some knobs, known and unknown.
std::vector<EngineSpec> sample_specs() {
  std::vector<EngineSpec> specs;
  std::mt19937 random(7);
  for (const PatternInfo& pattern : kPatterns) {
    for (const Layout weights : {Layout::kNchw, Layout::kNhwc}) {
      for (const std::int64_t engine : {0, 7, 62, 1234}) {
        specs.push_back({pattern.pattern, engine, weights, {}});
        std::set<KnobType> types;
        while (types.size() < 4)
          types.insert(static_cast<KnobType>(random() % (kKnobTypeCount + 8)));
        Knobs knobs;
        for (const KnobType type : types) {
          knobs.push_back({type, static_cast<std::int64_t>(random() % 5) - 1});
        }
        specs.push_back({pattern.pattern, engine, weights, sort_by_name(knobs)});
      }
    }
  }
  return specs;
}

TEST(EngineSpec, IsParsedFromItsName) {
  for (const EngineSpec& spec : sample_specs()) {
    const std::string name = to_string(spec);
    const auto parsed = parse_engine_spec(name);
    ASSERT_TRUE(parsed.has_value()) << name;
    EXPECT_EQ(*parsed, spec) << name;
  }
}

TEST(EngineSpec, HasTheSpellingThatIsOnDisk) {
  const EngineSpec spec{Pattern::kConvBiasRelu, 22, Layout::kNhwc, {{14, 3}, {12, -1}, {2, 4}}};
  EXPECT_EQ(to_string(spec), "cudnn9.conv_bias_relu.e22.krsc{STAGES=3,SPLIT_K_BUF=-1,TILE_SIZE=4}");
  EXPECT_EQ(to_string({spec.pattern, 22, Layout::kNhwc, sort_by_name(spec.knobs)}),
            "cudnn9.conv_bias_relu.e22.krsc{SPLIT_K_BUF=-1,STAGES=3,TILE_SIZE=4}");
  EXPECT_EQ(to_string({Pattern::kConvBackwardFilter, 5, Layout::kNchw, {}}),
            "cudnn9.conv_bwd_filter.e5");
}

TEST(EngineSpec, NamesTheLayoutOfItsWeightsAsPrimitivesDo) {
  for (const EngineSpec& spec : sample_specs()) {
    EXPECT_EQ(weights_layout({to_string(spec), Layout::kNchw, Layout::kNchw, 0}), spec.weights)
        << to_string(spec);
  }
}

TEST(EngineSpec, HasOneSpellingOnly) {
  for (const char* name : {"",
                           "cudnn9",
                           "cudnn9.conv",
                           "cudnn9.conv.",
                           "cudnn9.conv.e",
                           "cudnn9.conv.e-1",
                           "cudnn9.conv.e07",
                           "cudnn9.conv.e7.kcrs",
                           "cudnn9.conv.e7{}",
                           "cudnn9.conv.e7{STAGES}",
                           "cudnn9.conv.e7{STAGES=}",
                           "cudnn9.conv.e7{STAGES=3",
                           "cudnn9.conv.e7{STAGES=3}x",
                           "cudnn9.conv.e7{STAGES=3,}",
                           "cudnn9.conv.e7{STAGES=3,STAGES=4}",
                           "cudnn9.conv.e7{STAGES=3,SPLIT_K=1}",
                           "cudnn9.conv.e7{STAGE=3}",
                           "cudnn9.conv.e7{KNOB_2=1}",
                           "cudnn9.conv.e7{STAGES=03}",
                           "cudnn9.conv.e7{STAGES=3}.krsc",
                           "cudnn9.conv_relu6.e7",
                           "cudnn_legacy.fwd.1",
                           "cudnn9.conv.e99999999999999999999"}) {
    EXPECT_FALSE(parse_engine_spec(name).has_value()) << name;
  }
}

TEST(EngineSpec, IsTotallyOrdered) {
  std::vector<EngineSpec> specs = sample_specs();
  std::ranges::sort(specs);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    for (std::size_t j = 0; j < specs.size(); ++j) {
      EXPECT_EQ(specs[i] < specs[j], i < j) << to_string(specs[i]) << " " << to_string(specs[j]);
    }
  }
}

TEST(Pattern, StandsAtItsPlaceInTheList) {
  for (std::size_t i = 0; i < kPatterns.size(); ++i) {
    EXPECT_EQ(static_cast<std::size_t>(kPatterns[i].pattern), i);
    EXPECT_EQ(info(kPatterns[i].pattern).algorithm, kPatterns[i].algorithm);
  }
}

TEST(Pattern, IsThatOfTheWholeEpilogue) {
  const auto of = [](Direction direction, Epilogue epilogue) {
    ConvProblem conv;
    conv.direction = direction;
    conv.epilogue = std::move(epilogue);
    return pattern_of(conv);
  };
  using enum PostOp::Kind;
  EXPECT_EQ(of(Direction::kForward, {}), Pattern::kConv);
  EXPECT_EQ(of(Direction::kForward, {kBias}), Pattern::kConvBias);
  EXPECT_EQ(of(Direction::kForward, {kBias, kRelu}), Pattern::kConvBiasRelu);
  EXPECT_EQ(of(Direction::kForward, {kBias, kAdd}), Pattern::kConvBiasAdd);
  EXPECT_EQ(of(Direction::kForward, {kBias, kAdd, kRelu}), Pattern::kConvBiasAddRelu);
  EXPECT_EQ(of(Direction::kBackwardData, {}), Pattern::kConvBackwardData);
  EXPECT_EQ(of(Direction::kBackwardFilter, {}), Pattern::kConvBackwardFilter);
  EXPECT_EQ(of(Direction::kForward, {kRelu}), Pattern::kConvRelu);
  EXPECT_EQ(of(Direction::kForward, {kBias, kSilu}), Pattern::kConvBiasSilu);
  EXPECT_EQ(of(Direction::kForward, {kBias, kGelu}), Pattern::kConvBiasGelu);
  EXPECT_EQ(of(Direction::kForward, {kBias, kGeluTanh}), std::nullopt);
  EXPECT_EQ(of(Direction::kForward, {kBias, kAdd, kSilu}), std::nullopt);
  EXPECT_EQ(of(Direction::kForward, {kBias, kRelu, kAdd}), std::nullopt);
  EXPECT_EQ(of(Direction::kBackwardData, {kBias}), std::nullopt);
}

}  // namespace
}  // namespace torchalgo::cudnn

// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/knobs.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "cudnn_algo/knob_search.h"

namespace torchalgo::cudnn {
namespace {

TEST(KnobName, IsUniqueAndReversible) {
  std::set<std::string> names;
  for (KnobType type = 0; type < kKnobTypeCount + 20; ++type) {
    const std::string name = knob_name(type);
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(parse_knob_name(name), type) << name;
  }
}

TEST(KnobName, OfAKnownKnobIsNoNumber) {
  EXPECT_EQ(parse_knob_name("KNOB_2"), std::nullopt);
  EXPECT_EQ(parse_knob_name("KNOB_"), std::nullopt);
  EXPECT_EQ(parse_knob_name("KNOB_044"), std::nullopt);
  EXPECT_EQ(parse_knob_name("TILE_SIZ"), std::nullopt);
}

TEST(Neighbours, DifferFromTheCenterInOneStepOfOneKnob) {
  const std::vector<KnobRange> ranges = {{2, 0, 4, 1}, {13, 0, 8, 4}, {24, 5, 5, 1}};
  const Knobs center = {{2, 4}, {13, 4}, {24, 5}};
  const std::vector<Knobs> expected = {
      {{2, 3}, {13, 4}, {24, 5}}, {{2, 4}, {13, 0}, {24, 5}}, {{2, 4}, {13, 8}, {24, 5}}};
  EXPECT_EQ(neighbours(center, ranges, 16), expected);
  EXPECT_EQ(neighbours(center, ranges, 2).size(), 2U);
  EXPECT_TRUE(neighbours(center, ranges, 0).empty());
}

TEST(Neighbours, LeaveAloneWhatTheRangeDoesNotExplain) {
  // cuDNN proposes SPLIT_K_BUF=-1 while it says that 1 is the least value.
  const std::vector<KnobRange> ranges = {{12, 1, 2048, 1}, {14, 1, 3, 0}};
  const std::vector<Knobs> expected = {{{12, -1}, {14, 1}}, {{12, -1}, {14, 3}}};
  EXPECT_EQ(neighbours({{12, -1}, {14, 2}}, ranges, 16), expected);
  EXPECT_TRUE(neighbours({{40, 2}}, ranges, 16).empty());
}

}  // namespace
}  // namespace torchalgo::cudnn

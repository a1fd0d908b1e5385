// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/race.h"

#include <gtest/gtest.h>

namespace torchalgo {
namespace {

std::vector<bool> out(std::vector<Racer> racers) {
  judge(racers, {9, 27});
  std::vector<bool> result;
  for (const Racer& racer : racers) result.push_back(racer.is_out);
  return result;
}

using Out = std::vector<bool>;

TEST(Race, NobodyIsOutAfterOneSample) {
  EXPECT_EQ(out({{0, {100}}, {0, {900}}, {1, {5000}}}), (Out{false, false, false}));
}

TEST(Race, AfterTwoSamplesTheClearlySlowerOfAPlaceHasLost) {
  EXPECT_EQ(out({{0, {100, 110}}, {0, {120, 124}}, {0, {140, 126}}}), (Out{false, false, true}));
}

TEST(Race, OneLuckySampleKeepsARacerIn) {
  EXPECT_EQ(out({{0, {100, 110}}, {0, {900, 101}}}), (Out{false, false}));
}

TEST(Race, AnotherPlaceIsOutOnlyIfItIsFarSlower) {
  EXPECT_EQ(out({{0, {100, 100}}, {1, {190, 190}}, {2, {201, 250}}}), (Out{false, false, true}));
}

TEST(Race, AfterFourSamplesLessIsEnoughToLose) {
  const std::vector<double> slow = {115, 115, 115, 115};
  EXPECT_EQ(out({{0, {100, 100, 100, 100}}, {0, slow}}), (Out{false, true}));
  EXPECT_EQ(out({{0, {100, 100, 100}}, {0, {115, 115, 115}}}), (Out{false, false}));
}

TEST(Race, FiveSteadySamplesAreEnoughAndASlowPhaseIsForgiven) {
  EXPECT_EQ(out({{0, {100, 101, 400, 101, 300}}}), (Out{true}));
  EXPECT_EQ(out({{0, {100, 101, 400, 109, 300}}}), (Out{false}));
}

TEST(Race, NoisySamplesGoOnToTheMost) {
  const std::vector<double> noisy = {100, 120, 111, 130, 108, 140, 170, 180, 107};
  EXPECT_EQ(out({{0, noisy}}), (Out{false}));
  std::vector<double> many;
  for (int i = 0; i < 3; ++i) many.insert(many.end(), noisy.begin(), noisy.end());
  EXPECT_EQ(out({{0, many}}), (Out{true}));
}

TEST(Race, RivalsGoOnUntilAllOfThemAreKnown) {
  const std::vector<double> steady = {100, 100, 100, 100, 100};
  const std::vector<double> noisy = {101, 105, 111, 111, 111};
  EXPECT_EQ(out({{0, steady}, {0, noisy}, {1, steady}}), (Out{false, false, true}));
}

TEST(Race, DisturbedSamplesLoseNoRaceUntilThereIsNothingElse) {
  const std::vector<double> slow = {300, 300, 300, 300, 300};
  EXPECT_EQ(out({{0, {100, 100}}, {0, {}, {300, 300}}, {0, {300}, {300}}}),
            (Out{false, false, false}));
  std::vector<double> many = slow;
  many.insert(many.end(), slow.begin(), slow.end());
  EXPECT_EQ(out({{0, {100, 120}}, {0, {}, many}}), (Out{false, true}));
}

TEST(Race, ADisturbedSampleCountsOnlyWhereCalmOnesAreFew) {
  EXPECT_EQ((Racer{0, {1, 2}, {9}}.counted()), (std::vector<double>{1, 2, 9}));
  EXPECT_EQ((Racer{0, {1, 2, 3, 4, 5}, {9}}.counted()), (std::vector<double>{1, 2, 3, 4, 5}));
  EXPECT_EQ((Racer{0, {1, 2}, {9}, true, true}.counted()), (std::vector<double>{1, 2}));
}

TEST(Race, WhoIsOutStaysOutAndStillSetsTheMark) {
  Racer gone{0, {100, 100}, {}, true};
  EXPECT_EQ(out({gone, {0, {130, 130}}, {0, {104, 104}}}), (Out{true, true, false}));
}

TEST(Race, WithoutNoiseTwoSamplesLoseAndFiveDecide) {
  EXPECT_EQ(samples_without_noise({0, 0, 0, 1, 2}, {100, 110, 130, 120, 250}, {9, 27}),
            (std::vector<int>{5, 5, 2, 5, 2}));
}

}  // namespace
}  // namespace torchalgo

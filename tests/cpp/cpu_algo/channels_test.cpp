// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

SliceProblem make_slice(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c,
                        std::int64_t begin, std::int64_t k) {
  SliceProblem slice;
  slice.n = n, slice.c = c, slice.h = h, slice.w = w;
  slice.begin = begin, slice.k = k;
  return slice;
}

TEST(Slice, TakesTheChannelsExactly) {
  struct Part {
    std::int64_t c, begin, k;
  };
  constexpr Part kParts[] = {{32, 0, 16},  {32, 16, 16},  {116, 0, 58}, {116, 58, 58},
                             {5, 4, 1},    {1, 0, 1},     {40, 3, 37},  {40, 7, 9},
                             {70, 15, 18}, {300, 1, 298}, {33, 16, 17}, {64, 31, 2}};
  for (const Part& part : kParts) {
    for (const std::int64_t n : {1, 2}) {
      expect_correct("cpu.slice", make_slice(n, 1, 1, part.c, part.begin, part.k), 4, 0);
      expect_correct("cpu.slice", make_slice(n, 5, 7, part.c, part.begin, part.k), 4, 0);
    }
  }
  expect_correct("cpu.slice", make_slice(2, 29, 31, 100, 20, 60), 4, 0);
}

Problem make_shuffle(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c,
                     std::int64_t groups) {
  ShuffleProblem shuffle;
  shuffle.n = n, shuffle.c = c, shuffle.h = h, shuffle.w = w;
  shuffle.groups = groups;
  return shuffle;
}

Problem make_joined(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t each,
                    std::int64_t groups) {
  ConcatProblem concat;
  concat.n = n, concat.h = h, concat.w = w;
  concat.c.assign(static_cast<std::size_t>(groups), each);
  concat.groups = groups;
  return concat;
}

// Groups of whole blocks have a row in nChw16c; others would move single lanes.
TEST(Shuffle, InterleavesTheGroupsExactly) {
  for (const std::int64_t each : {1, 3, 8, 15, 16, 17, 29, 32, 58, 100}) {
    for (const std::int64_t n : {1, 2}) {
      expect_correct("cpu.shuffle", make_shuffle(n, 5, 7, 2 * each, 2), each % 16 == 0 ? 3 : 2, 0);
      expect_correct("cpu.shuffle", make_shuffle(n, 5, 7, 3 * each, 3), 2, 0);
      expect_correct("cpu.shuffle", make_joined(n, 5, 7, each, 2), 3, 0);
      expect_correct("cpu.shuffle", make_joined(n, 1, 1, each, 4), 2, 0);
    }
  }
  expect_correct("cpu.shuffle", make_shuffle(2, 29, 31, 64, 2), 3, 0);
  expect_correct("cpu.shuffle", make_joined(2, 29, 31, 58, 2), 3, 0);
}

// Has vectors of whole channels for factors 2 and 4, pad lanes, and rows of several tiles.
TEST(PixelShuffle, MovesTheElementsExactly) {
  PixelShuffleProblem shuffle;
  const auto expect_exact = [&](std::int64_t factor, std::int64_t channels, std::int64_t h,
                                std::int64_t w) {
    shuffle.factor = factor, shuffle.c = channels * factor * factor;
    shuffle.h = h, shuffle.w = w;
    expect_correct("cpu.pixel_shuffle", shuffle, 6, 0);
  };
  shuffle.n = 2;
  for (const std::int64_t factor : {2, 3, 4, 5}) {
    for (const std::int64_t channels : {1, 16, 33}) expect_exact(factor, channels, 3, 7);
    expect_exact(factor, 3, 2, 70);
  }
  expect_exact(4, 1, 1, 1);
  expect_exact(2, 20, 13, 67);
}

TEST(PixelShuffle, RefusesWithAReason) {
  const auto refusal = [](const char* problem) {
    return cpu_algorithm("cpu.pixel_shuffle").offer(parse_problem(problem), cpu_device()).refusal;
  };
  EXPECT_EQ(refusal("pixelshuffle_f16_n1c8h3w3_x2"), "needs f32, got f16");
  EXPECT_EQ(refusal("shuffle_f32_n1c8h3w3_g2"), "needs a pixel shuffle");
}

TEST(Shuffle, RefusesWithAReason) {
  const auto refusal = [](const char* problem) {
    return cpu_algorithm("cpu.shuffle").offer(parse_problem(problem), cpu_device()).refusal;
  };
  EXPECT_EQ(refusal("shuffle_f32_n1c99h3w3_g33"), "needs 2 to 32 groups, got 33");
  EXPECT_EQ(refusal("shuffle_f16_n1c8h3w3_g2"), "needs f32, got f16");
  EXPECT_EQ(refusal("concat_f32_n1c8x4h3w3_shuffle2"),
            "needs a channel shuffle, of one tensor or of each group's");
  EXPECT_EQ(refusal("concat_f32_n1c4x4h3w3"),
            "needs a channel shuffle, of one tensor or of each group's");
}

}  // namespace
}  // namespace torchalgo

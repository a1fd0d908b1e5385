// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/lru_cache.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace torchalgo::cudnn {
namespace {

TEST(AnswerCache, ForgetsTheLongestUnused) {
  AnswerCache<int> cache(2);
  const auto get = [&](const std::string& key, int value) {
    return *cache.find_or_make(key, [&] { return value; });
  };
  EXPECT_EQ(get("a", 1), 1);
  EXPECT_EQ(get("b", 2), 2);
  EXPECT_EQ(get("a", 9), 1);
  EXPECT_EQ(get("c", 3), 3);
  EXPECT_EQ(cache.size(), 2U);
  EXPECT_EQ(cache.find("b"), nullptr);
  EXPECT_EQ(*cache.find("a"), 1);
}

TEST(AnswerCache, KeepsNothingOfAFailure) {
  AnswerCache<int> cache(2);
  const auto fail = []() -> int { throw std::runtime_error("no"); };
  EXPECT_THROW(static_cast<void>(cache.find_or_make("a", fail)), std::runtime_error);
  EXPECT_EQ(cache.size(), 0U);
}

}  // namespace
}  // namespace torchalgo::cudnn

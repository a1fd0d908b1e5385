// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/executable_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace torchalgo::cudnn {
namespace {

struct Question {
  ConvProblem problem;
  Primitive primitive;
  ExecutableKey key() const { return {&problem, &primitive}; }
};

std::shared_ptr<Executable> thing() { return std::make_shared<Executable>(); }

TEST(ExecutableCache, TellsApartEverythingThatAPlanDependsOn) {
  ExecutableCache cache(kMaxExecutables);
  const Question base;
  const auto kept = thing();
  EXPECT_EQ(cache.add(base.key(), kept), 0U);
  EXPECT_EQ(cache.find(base.key()), kept);
  Question workspace = base;
  workspace.primitive.workspace_bytes = 5;
  EXPECT_EQ(cache.find(workspace.key()), kept);
  std::vector<Question> others(6, base);
  others[0].problem.n = 2;
  others[1].problem.dilation_w = 2;
  others[2].problem.epilogue = {PostOp::kBias};
  others[3].primitive.name = "other";
  others[4].primitive.src = Layout::kNhwc;
  others[5].primitive.dst = Layout::kNhwc;
  for (std::size_t i = 0; i < others.size(); ++i) {
    EXPECT_EQ(cache.find(others[i].key()), nullptr) << i;
    cache.add(others[i].key(), thing());
  }
  EXPECT_EQ(cache.size(), 7U);
  EXPECT_EQ(cache.find(base.key()), kept);
}

TEST(ExecutableCache, ForgetsTheLongestUnused) {
  ExecutableCache cache(3);
  std::vector<Question> questions(5);
  for (std::size_t i = 0; i < questions.size(); ++i) {
    questions[i].problem.n = static_cast<std::int64_t>(i + 1);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cache.add(questions[i].key(), thing()), 0U);
  EXPECT_NE(cache.find(questions[0].key()), nullptr);  // now 1 is the oldest
  EXPECT_EQ(cache.add(questions[3].key(), thing()), 1U);
  EXPECT_EQ(cache.find(questions[1].key()), nullptr);
  EXPECT_NE(cache.find(questions[0].key()), nullptr);
  cache.set_limit(1);
  EXPECT_EQ(cache.add(questions[4].key(), thing()), 3U);
  EXPECT_EQ(cache.size(), 1U);
  cache.clear();
  EXPECT_EQ(cache.find(questions[4].key()), nullptr);
}

}  // namespace
}  // namespace torchalgo::cudnn

// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/calm.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <thread>
#include <vector>

namespace torchalgo {
namespace {

TEST(Calm, ASampleDuringWhichTheProcessorWasTakenAwayWasNotAlone) {
  std::int64_t preemptions = 7;
  const auto calm = host_calm([&] { return preemptions; }, [] { return 1.0; });
  calm->begin();
  EXPECT_TRUE(calm->was_alone());
  preemptions = 8;
  EXPECT_FALSE(calm->was_alone());
  calm->begin();
  EXPECT_TRUE(calm->was_alone());
}

TEST(Calm, ASlowBeatIsNoticedUntilTheMachineIsSlowForGood) {
  double beat = 100;
  const auto calm = host_calm([] { return 0; }, [&] { return beat; });
  EXPECT_TRUE(calm->is_steady());
  beat = 119;
  EXPECT_TRUE(calm->is_steady());
  beat = 150;
  int unsteady = 0;
  while (!calm->is_steady() && unsteady < 1000) ++unsteady;
  EXPECT_GT(unsteady, 10);
  EXPECT_LT(unsteady, 1000);
}

TEST(Calm, OfThisProcessSeesThreadsThatCompeteForItsProcessors) {
  const auto calm = host_calm();
  static_cast<void>(calm->is_steady());
  calm->begin();
  const std::size_t count = 4 * std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      while (std::chrono::steady_clock::now() < end) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(calm->was_alone());
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "provider/call_threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/usable_threads.h"
#include "ir/thread_pool.h"

namespace torchalgo {
namespace {

using std::chrono::milliseconds;

bool is_pool(const cpu::Threads& threads) { return threads.run == cpu::pool_threads(2, 2).run; }

class CallThreads : public testing::Test {
 protected:
  void SetUp() override {
    if (usable_threads() < 2) GTEST_SKIP() << "needs two processors";
    at::set_num_threads(2);
    wait_for_openmp();
  }
  static void wait_for_openmp() {
    while (is_pool(call_threads())) std::this_thread::sleep_for(milliseconds(1));
  }
};

std::set<std::pair<std::int64_t, std::int64_t>> ranges_of(std::int64_t count, std::int64_t grain) {
  std::mutex mutex;
  std::set<std::pair<std::int64_t, std::int64_t>> ranges;
  parallel_for(call_threads(), count, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(mutex);
    ranges.emplace(begin, end);
  });
  return ranges;
}

// The thread of the range after the first one sleeps, as if its core were taken away.
void hold_up() {
  parallel_for(call_threads(), 2, 1, [](std::int64_t begin, std::int64_t) {
    if (begin > 0) std::this_thread::sleep_for(milliseconds(5));
  });
}

TEST_F(CallThreads, AreThoseOfThePoolForAWhileAfterLongWaits) {
  for (int round = 0; round < 2; ++round) {
    for (int wait = 0; wait < 100 && !is_pool(call_threads()); ++wait) hold_up();
    EXPECT_TRUE(is_pool(call_threads()));
    wait_for_openmp();
  }
}

TEST_F(CallThreads, AreAsTheGuardOfTheThreadSays) {
  const ThreadUseGuard outer(ThreadUse::kPool);
  {
    const ThreadUseGuard inner(ThreadUse::kOpenMp);
    for (int wait = 0; wait < 3; ++wait) hold_up();
    EXPECT_FALSE(is_pool(call_threads()));
    std::thread([] { EXPECT_FALSE(is_pool(call_threads())); }).join();  // it has no guard
  }
  EXPECT_TRUE(is_pool(call_threads()));
}

TEST_F(CallThreads, DivideInTheSameWay) {
  for (const auto& [count, grain] : {std::pair{5, 1}, {100, 40}, {1, 1}, {64, 64}, {0, 1}}) {
    const ThreadUseGuard outer(ThreadUse::kPool);
    const auto of_pool = ranges_of(count, grain);
    const ThreadUseGuard inner(ThreadUse::kOpenMp);
    EXPECT_EQ(ranges_of(count, grain), of_pool) << count << " " << grain;
  }
}

TEST_F(CallThreads, AreNotThoseOfThePoolInsideARegionOfOpenMp) {
  const ThreadUseGuard outer(ThreadUse::kOpenMp);
  parallel_for(call_threads(), 2, 1, [](std::int64_t, std::int64_t) {
    const ThreadUseGuard inner(ThreadUse::kPool);
    EXPECT_FALSE(is_pool(call_threads()));
  });
}

TEST_F(CallThreads, AreNotThoseOfThePoolIfThereIsOne) {
  const ThreadUseGuard guard(ThreadUse::kPool);
  at::set_num_threads(1);
  EXPECT_FALSE(is_pool(call_threads()));
  at::set_num_threads(2);
}

TEST_F(CallThreads, AreThoseOfThePoolIfThereAreTooFewProcessors) {
  if (usable_threads() >= cpu::SharedTasks::kMostSlices) GTEST_SKIP() << "the pool has no more";
  at::set_num_threads(usable_threads() + 1);
  EXPECT_TRUE(is_pool(call_threads()));
  at::set_num_threads(2);
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "provider/call_threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/usable_threads.h"
#include "ir/thread_pool.h"

namespace torchalgo {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

bool is_pool(const cpu::Threads& threads) { return threads.run == cpu::pool_threads(2, 2).run; }

class CallThreads : public testing::Test {
 protected:
  void SetUp() override {
    if (usable_threads() < 2) GTEST_SKIP() << "needs two processors";
    if (usable_threads() >= cpu::SharedTasks::kMostSlices) GTEST_SKIP() << "the pool has no more";
    at::set_num_threads(2);
    wait_for_openmp();
  }
  void TearDown() override { at::set_num_threads(2); }
  static void wait_for_openmp() {
    for (int ms = 0; ms < 5000 && is_pool(call_threads()); ++ms)
      std::this_thread::sleep_for(milliseconds(1));
    ASSERT_FALSE(is_pool(call_threads()));
  }
};

std::set<std::pair<std::int64_t, std::int64_t>> ranges_of(const cpu::Threads& threads,
                                                          std::int64_t count, std::int64_t grain) {
  std::mutex mutex;
  std::set<std::pair<std::int64_t, std::int64_t>> ranges;
  parallel_for(threads, count, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(mutex);
    ranges.emplace(begin, end);
  });
  return ranges;
}

// The thread of the range after the first one sleeps, as if its core were taken away.
void hold_up(microseconds first = microseconds(0), microseconds second = milliseconds(5)) {
  parallel_for(call_threads(), 2, 1, [&](std::int64_t begin, std::int64_t) {
    std::this_thread::sleep_for(begin > 0 ? second : first);
  });
}

void hold_up_until_pool() {
  for (int wait = 0; wait < 100 && !is_pool(call_threads()); ++wait) hold_up();
  EXPECT_TRUE(is_pool(call_threads()));
}

// With so many threads, the pool runs kernels whatever happened before.
void take_too_many_threads() {
  at::set_num_threads(usable_threads() + 1);
  EXPECT_TRUE(is_pool(call_threads()));
}

TEST_F(CallThreads, AreThoseOfThePoolForAWhileAfterLongWaits) {
  hold_up_until_pool();
  wait_for_openmp();
  const auto begin = steady_clock::now();
  hold_up_until_pool();
  wait_for_openmp();
  EXPECT_GE(steady_clock::now() - begin, milliseconds(200));  // twice as long
}

TEST_F(CallThreads, AreThoseOfThePoolForAShortTimeAgainAfterACalmWhile) {
  bool was_short = false;  // unless other programs take the cores
  for (int i = 0; i < 8 && !was_short; ++i) {
    hold_up_until_pool();
    wait_for_openmp();
    hold_up(milliseconds(600), milliseconds(600));
    std::atomic<bool> has_begun = false;
    std::thread other([&] {  // waits too, but the pool is used already when its region ends
      parallel_for(call_threads(), 2, 1, [&](std::int64_t begin, std::int64_t) {
        has_begun = true;
        std::this_thread::sleep_for(milliseconds(begin > 0 ? 40 : 0));
      });
    });
    while (!has_begun) std::this_thread::yield();
    const auto begin = steady_clock::now();
    hold_up_until_pool();
    wait_for_openmp();
    was_short = steady_clock::now() - begin < milliseconds(190);
    other.join();
  }
  EXPECT_TRUE(was_short);
}

TEST_F(CallThreads, AreThoseOfOpenMpAfterSingleWaits) {
  for (int wait = 0; wait < 3; ++wait) {
    hold_up();
    EXPECT_FALSE(is_pool(call_threads()));
    std::this_thread::sleep_for(milliseconds(60));
  }
}

TEST_F(CallThreads, AreThoseOfOpenMpIfARangeTakesALittleLonger) {
  bool was_pool = true;  // always, unless other programs take the cores
  for (int i = 0; i < 8 && was_pool; ++i) {
    wait_for_openmp();
    for (int wait = 0; wait < 3; ++wait) {
      hold_up(milliseconds(20), milliseconds(30));
      hold_up(microseconds(0), microseconds(300));
    }
    was_pool = is_pool(call_threads());
  }
  EXPECT_FALSE(was_pool);
}

TEST_F(CallThreads, AreNoMoreThanCanRun) {
  take_too_many_threads();
  std::mutex mutex;
  std::set<std::thread::id> ids;
  const int usable = usable_threads();
  parallel_for(call_threads(), usable + 1, 1, [&](std::int64_t, std::int64_t) {
    std::this_thread::sleep_for(milliseconds(20));
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_LE(ids.size(), static_cast<std::size_t>(usable));
}

TEST_F(CallThreads, AreThoseOfOpenMpWithAGuardOfTheThread) {
  {
    const OpenMpGuard outer;
    { const OpenMpGuard inner; }
    for (int wait = 0; wait < 3; ++wait) hold_up();
    at::set_num_threads(usable_threads() + 1);
    EXPECT_FALSE(is_pool(call_threads()));
    std::thread([] { EXPECT_TRUE(is_pool(call_threads())); }).join();  // it has no guard
  }
  at::set_num_threads(2);
  EXPECT_FALSE(is_pool(call_threads()));  // what a guard's regions wait for does not count
  take_too_many_threads();
}

TEST_F(CallThreads, DivideInTheSameWay) {
  for (const auto& [count, grain] : {std::pair{5, 1}, {100, 40}, {1, 1}, {64, 64}, {0, 1}}) {
    const auto of_pool = ranges_of(cpu::pool_threads(2, 2), count, grain);
    EXPECT_EQ(ranges_of(call_threads(), count, grain), of_pool) << count << " " << grain;
    const OpenMpGuard guard;
    EXPECT_EQ(ranges_of(call_threads(), count, grain), of_pool) << count << " " << grain;
  }
}

TEST_F(CallThreads, AreNotThoseOfThePoolInsideARegionOfOpenMp) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "std::thread is in the place of OpenMP";
#endif
  take_too_many_threads();
  const OpenMpGuard guard;  // of this thread, so that the region is one of OpenMP
  const auto caller = std::this_thread::get_id();
  std::atomic<int> others = 0;
  parallel_for(call_threads(), usable_threads() + 1, 1, [&](std::int64_t, std::int64_t) {
    if (std::this_thread::get_id() == caller) return;
    EXPECT_FALSE(is_pool(call_threads()));
    ++others;
  });
  EXPECT_GT(others, 0);
}

TEST_F(CallThreads, AreNotThoseOfThePoolIfThereIsOne) {
  hold_up_until_pool();
  at::set_num_threads(1);
  EXPECT_FALSE(is_pool(call_threads()));
}

TEST_F(CallThreads, AreNotThoseOfThePoolIfThereAreMoreThanItHas) {
  at::set_num_threads(cpu::SharedTasks::kMostSlices);
  EXPECT_TRUE(is_pool(call_threads()));
  at::set_num_threads(cpu::SharedTasks::kMostSlices + 1);
  EXPECT_FALSE(is_pool(call_threads()));
}

}  // namespace
}  // namespace torchalgo

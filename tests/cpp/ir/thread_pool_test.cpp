// SPDX-License-Identifier: BSD-3-Clause
#include "ir/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/usable_threads.h"

namespace torchalgo::cpu {
namespace {

// Ends the program if one of its tests hangs.
class ThreadPool : public testing::Test {
 protected:
  void SetUp() override { alarm(60); }
  void TearDown() override { alarm(0); }
};

Threads pool_of(int threads) { return pool_threads(threads, threads); }

using std::chrono::microseconds;
using std::chrono::steady_clock;
using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

#if defined(__SANITIZE_THREAD__)
constexpr bool kHasThreadSanitizer = true;  // it allows no threads after fork()
#else
constexpr bool kHasThreadSanitizer = false;
#endif

Ranges ranges_of(int threads, std::int64_t count, std::int64_t grain) {
  Ranges ranges;
  std::mutex mutex;
  parallel_for(pool_of(threads), count, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

// Returns true as soon as `is_done()`, and false after 20 seconds.
template <class Condition>
bool wait_until(const Condition& is_done) {
  const auto end = steady_clock::now() + std::chrono::seconds(20);
  while (!is_done()) {
    if (steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Calls body() on `threads` threads at once, the caller's among them. Returns false if they do not
// all come.
template <class Body>
bool meet(int threads, const Body& body) {
  std::atomic<int> present = 0;
  std::atomic<bool> have_met = true;
  parallel_for(pool_of(threads), threads, 1, [&](std::int64_t, std::int64_t) {
    ++present;
    if (!wait_until([&] { return present == threads; })) have_met = false;
    body();
  });
  return have_met;
}

bool meet(int threads) {
  return meet(threads, [] {});
}

// Returns the threads that compute `count` ranges of 2 ms.
std::set<std::thread::id> ids_of(const Threads& threads, int count) {
  std::set<std::thread::id> ids;
  std::mutex mutex;
  parallel_for(threads, count, 1, [&](std::int64_t, std::int64_t) {
    std::this_thread::sleep_for(microseconds(2000));  // a worker that may help has time to come
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  return ids;
}

// Returns what body() returns in a child process after fork().
template <class Body>
bool in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) std::_Exit(body() ? 0 : 1);
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

TEST_F(ThreadPool, DividesAsTorchDoes) {
  EXPECT_EQ(ranges_of(2, 5, 1), (Ranges{{0, 3}, {3, 5}}));
  EXPECT_EQ(ranges_of(4, 9, 1), (Ranges{{0, 3}, {3, 6}, {6, 9}}));
  EXPECT_EQ(ranges_of(4, 100, 50), (Ranges{{0, 50}, {50, 100}}));
  EXPECT_EQ(ranges_of(4, 100, 100), (Ranges{{0, 100}}));
  for (const int one : {1, 0, -1}) EXPECT_EQ(ranges_of(one, 100, 1), (Ranges{{0, 100}}));
  EXPECT_EQ(ranges_of(4, 3, 0), (Ranges{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(ranges_of(4, 0, 1), Ranges());
  EXPECT_EQ(ranges_of(1000, 1000, 1).size(), 125U);  // of 8 tasks: more than 128 parts never exist
}

TEST_F(ThreadPool, WorkersHelp) {
  for (const int threads : {2, 3, 5, 2}) EXPECT_TRUE(meet(threads)) << threads;
}

TEST_F(ThreadPool, WorkersHelpEachOfSeveralCallers) {
  bool is_helped = false;
  parallel_for(pool_of(2), 2, 1, [&](std::int64_t begin, std::int64_t) {
    if (begin == 0) std::thread([&] { is_helped = meet(3); }).join();
  });
  EXPECT_TRUE(is_helped);
}

TEST_F(ThreadPool, WakesWorkersThatSleep) {
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(meet(4)) << i;
    std::this_thread::sleep_for(microseconds(i % 3 * 1000));
  }
}

TEST_F(ThreadPool, WaitsForNobodyWhoHasNotBegun) {
  ASSERT_TRUE(meet(2));
  // Every worker is held up in a range of another caller.
  constexpr int kMost = SharedTasks::kMostSlices;  // no call has more ranges
  std::atomic<int> held = 0;
  std::atomic<bool> go_on = false;
  std::thread other([&] {
    parallel_for(pool_of(kMost), kMost, 1, [&](std::int64_t, std::int64_t) {
      ++held;
      wait_until([&] { return go_on.load(); });
    });
  });
  EXPECT_TRUE(wait_until([&] { return held == kMost; }));
  const auto begin = steady_clock::now();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ranges_of(2, 10, 1).size(), 2U);
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(10));
  go_on = true;
  other.join();
}

TEST_F(ThreadPool, ACallInsideARangeRunsOnItsThread) {
  const auto check = [] { EXPECT_EQ(ids_of(pool_of(4), 4), std::set{std::this_thread::get_id()}); };
  EXPECT_TRUE(meet(3, check));
  EXPECT_TRUE(meet(3));  // and the caller is no longer inside
}

TEST_F(ThreadPool, ThrowsTheFirstExceptionWhenAllRangesAreComputed) {
  for (const int thrower : {0, 1, 2}) {
    std::atomic<int> present = 0, computed = 0;
    const auto run = [&] {
      parallel_for(pool_of(3), 3, 1, [&](std::int64_t begin, std::int64_t) {
        ++present;
        wait_until([&] { return present == 3; });
        if (begin == thrower) throw std::runtime_error("of range " + std::to_string(begin));
        std::this_thread::sleep_for(microseconds(2000));
        ++computed;
      });
    };
    try {
      run();
      FAIL() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "of range " + std::to_string(thrower));
    }
    EXPECT_EQ(computed, 2);
    EXPECT_TRUE(meet(3));
  }
}

TEST_F(ThreadPool, ThrowsOneOfSeveralExceptions) {
  for (int i = 0; i < 50; ++i) {
    std::atomic<int> present = 0;
    const auto run = [&] {
      parallel_for(pool_of(4), 4, 1, [&](std::int64_t begin, std::int64_t) {
        ++present;
        wait_until([&] { return present == 4; });
        std::this_thread::sleep_for(microseconds(begin == 2 ? 0 : 500));
        throw std::runtime_error("of range " + std::to_string(begin));
      });
    };
    EXPECT_THROW(run(), std::runtime_error);
  }
}

TEST_F(ThreadPool, NoMoreThreadsComputeThanAtOnce) {
  if (kHasThreadSanitizer) GTEST_SKIP();
  EXPECT_TRUE(in_child([] {  // whose pool has no workers yet
    return ids_of(pool_threads(4, 1), 4) == std::set{std::this_thread::get_id()} &&
           ids_of(pool_threads(8, 2), 8).size() <= 2;
  }));
}

TEST_F(ThreadPool, WorkersOfManyCallersHaveCoresOfTheirOwn) {
  if (kHasThreadSanitizer) GTEST_SKIP();
  EXPECT_TRUE(in_child([] {  // whose pool has no workers yet
    const int usable = usable_threads();
    std::set<std::thread::id> workers;
    std::mutex mutex;
    std::vector<std::thread> callers;
    for (int i = 0; i <= usable; ++i) {
      callers.emplace_back([&] {
        for (int call = 0; call < 10; ++call) {
          std::set<std::thread::id> ids = ids_of(pool_of(2), 2);
          ids.erase(std::this_thread::get_id());
          const std::lock_guard lock(mutex);
          workers.merge(ids);
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    return workers.size() <= static_cast<std::size_t>(std::max(1, usable - 1));
  }));
}

TEST_F(ThreadPool, TheCallerComputesAllIfNoThreadCanStart) {
  if (kHasThreadSanitizer) GTEST_SKIP();
  EXPECT_TRUE(in_child([] {
    pthread_attr_t too_large;
    pthread_attr_init(&too_large);
    pthread_attr_setstacksize(&too_large, std::size_t{1} << 60);
    pthread_setattr_default_np(&too_large);
    return ids_of(pool_of(4), 4).size() == 1;
  }));
}

TEST_F(ThreadPool, RangesHaveTheRoundingOfTheCaller) {
  for (const int rounding : {FE_UPWARD, FE_TONEAREST}) {
    std::fesetround(rounding);
    const volatile double one = 1, three = 3;
    const double third = one / three;
    std::atomic<int> right = 0;
    EXPECT_TRUE(meet(3, [&] { right += one / three == third; }));
    EXPECT_EQ(right, 3);
    EXPECT_EQ(third > 1.0 / 3, rounding == FE_UPWARD);
  }
}

TEST_F(ThreadPool, WorkersLeaveSignalsToTheProgram) {
  const auto caller = std::this_thread::get_id();
  std::atomic<int> blocked = 0;
  EXPECT_TRUE(meet(3, [&] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked += std::this_thread::get_id() != caller && sigismember(&mask, SIGINT) == 1;
  }));
  EXPECT_EQ(blocked, 2);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGINT), 0);
}

TEST_F(ThreadPool, AChildAfterForkHasWorkers) {
  if (kHasThreadSanitizer) GTEST_SKIP();
  std::atomic<bool> stops = false;
  std::thread other([&] {  // the parent's pool is in use during each fork()
    while (!stops) ranges_of(3, 30, 1);
  });
  for (int i = 0; i < 20 && !HasFailure(); ++i)
    EXPECT_TRUE(in_child([] { return meet(3) && meet(2); }));
  stops = true;
  other.join();
}

TEST_F(ThreadPool, DoesNotDelayTheEndOfTheProcess) {
  if (kHasThreadSanitizer) GTEST_SKIP();
  const auto exit_inside = [] {
    std::atomic<int> present = 0;
    parallel_for(pool_of(2), 2, 1, [&](std::int64_t begin, std::int64_t) {
      ++present;
      wait_until([&] { return present == 2; });
      if (begin == 0) std::exit(3);
      for (;;) std::this_thread::sleep_for(microseconds(1000));
    });
  };
  EXPECT_EXIT(exit_inside(), testing::ExitedWithCode(3), "");
}

// Returns true if a worker has used 1.5 ms of CPU time in 3 ms without work, after one of many
// calls. It does so if it polls and has a core.
bool polls_long(int calls) {
  for (int i = 0; i < calls && meet(2); ++i) {
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(microseconds(3000));
    if (std::clock() - before > CLOCKS_PER_SEC * 15 / 10'000) return true;
  }
  return false;
}

TEST_F(ThreadPool, WorkersPollAsLongAsTheEnvironmentSays) {
  if (kHasThreadSanitizer) GTEST_SKIP();
  const auto expect = [](const char* setting, bool is_long, const char* message) {
    setenv("TORCHALGO_POLL_US", setting, 1);
    const auto check = [&] { std::_Exit(polls_long(is_long ? 2000 : 20) == is_long ? 0 : 1); };
    EXPECT_EXIT(check(), testing::ExitedWithCode(0), message) << setting;
  };
  expect("0", false, "^$");
  expect("1000000", true, "^$");
  expect("", false, "^$");
  expect("1e3", false, "TORCHALGO_POLL_US=1e3, expected whole microseconds; it polls 50");
  expect("-1", false, "TORCHALGO_POLL_US=-1, expected");
  expect("9999999999", false, "TORCHALGO_POLL_US=9999999999, expected");
  unsetenv("TORCHALGO_POLL_US");
}

// A caller of regions of random sizes. Their tasks sleep or yield at times.
class RandomCaller {
 public:
  RandomCaller(std::uint32_t seed, int regions) : random_(seed), regions_(regions) {}

  // Returns how many regions had a wrong sum.
  int operator()() {
    int wrong = 0;
    for (int region = 0; region < regions_; ++region) wrong += !is_right();
    return wrong;
  }

 private:
  std::int64_t draw(std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(0, last)(random_);
  }

  bool is_right() {
    const std::int64_t tasks = draw(draw(3) == 0 ? 2000 : 20), first = draw(1000);
    const std::int64_t sleeper = draw(200) == 0 ? draw(tasks) : -1;
    const std::int64_t yielder = draw(20) == 0 ? draw(tasks) : -1;
    const Threads threads = pool_of(static_cast<int>(1 + draw(4)));
    std::vector<std::int64_t> results(static_cast<std::size_t>(tasks),
                                      0);  // no atomics: TSan looks
    const auto body = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        if (task == sleeper) std::this_thread::sleep_for(microseconds(task % 100));
        if (task == yielder) std::this_thread::yield();
        results[static_cast<std::size_t>(task)] += first + task;
      }
    };
    if (draw(1) == 0) {
      parallel_for(threads, tasks, 1 + draw(8), body);
    } else {
      run_ranges_in_slices(threads, tasks, 1 + draw(4),
                           [&](std::int64_t begin, std::int64_t end, auto) { body(begin, end); });
    }
    return std::accumulate(results.begin(), results.end(), std::int64_t{0}) ==
           tasks * first + tasks * (tasks - 1) / 2;
  }

  std::mt19937 random_;
  int regions_;
};

TEST_F(ThreadPool, ComputesEachTaskOnceForManyCallers) {
  const char* const given = std::getenv("TORCHALGO_POOL_REGIONS");
  const int regions = given != nullptr ? std::atoi(given) : 20'000;
  if (given != nullptr) alarm(0);         // they may take long
  for (const int callers : {1, 3, 20}) {  // 20: more than the pool has regions
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < callers; ++i) {
      threads.emplace_back([&, i] {
        wrong +=
            RandomCaller(static_cast<std::uint32_t>(100 * callers + i), regions / 3 / callers)();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0) << callers;
  }
}

}  // namespace
}  // namespace torchalgo::cpu

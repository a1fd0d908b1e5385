// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/usable_threads.h"
#include "ir/thread_pool.h"
#include "profiler/timer.h"
#include "provider/call_threads.h"

namespace torchalgo {
namespace {

bool has_pool() { return call_threads().run == cpu::pool_threads(2, 2).run; }

TEST(HostTimer, RunsWorkOnTheThreadsOfOpenMp) {
  if (usable_threads() >= cpu::SharedTasks::kMostSlices) GTEST_SKIP() << "the pool has no more";
  const int before = at::get_num_threads();
  at::set_num_threads(usable_threads() + 1);
  EXPECT_TRUE(has_pool());
  int runs = 0, runs_of_pool = 0;
  const Runnable work = {nullptr, [&] { ++runs, runs_of_pool += has_pool(); }};
  static_cast<void>(host_timer()->warm_up(work, 2)->sample_ns());
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(runs_of_pool, 0);
  EXPECT_TRUE(has_pool());
  at::set_num_threads(before);
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/probe.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

namespace torchalgo {
namespace {

using Clock = std::chrono::steady_clock;

void spin_ns(std::int64_t ns) {
  const auto end = Clock::now() + std::chrono::nanoseconds(ns);
  while (Clock::now() < end) {
  }
}

// Kernels that last at least as long as said, however fast the machine is.
struct SlowKernels {
  std::atomic<std::int64_t> largest_count = 0;

  PeakKernels kernels() {
    return {[](std::int64_t rounds, float) {
              spin_ns(1000 * rounds);
              return 0.0F;
            },
            500.0,
            [this](const float*, std::int64_t count) {
              if (count > largest_count) largest_count = count;
              spin_ns(count / 16);
              return 0.0F;
            },
            [](const float*, float*, std::int64_t count) { spin_ns(count / 8); }};
  }
};

TEST(Probe, ReportsNoRateAboveWhatTheKernelsDid) {
  SlowKernels slow;
  const Probes probes = probe_peaks(slow.kernels(), 2);
  const double threads = at::get_num_threads();
  EXPECT_GT(probes.flops_per_ns, 0);
  EXPECT_LE(probes.flops_per_ns, 0.5 * threads);
  for (const Bandwidth& at : probes.bandwidths) {
    EXPECT_GT(at.bytes_per_ns, 0);
    EXPECT_LE(at.bytes_per_ns, 64 * threads);
  }
}

TEST(Probe, PassesWorkingSetsFromACacheToMemoryEachDoubleTheOneBefore) {
  SlowKernels slow;
  const Probes probes = probe_peaks(slow.kernels(), 1);
  ASSERT_GT(probes.bandwidths.size(), 8U);
  for (std::size_t i = 1; i < probes.bandwidths.size(); ++i) {
    EXPECT_EQ(probes.bandwidths[i].working_set_bytes,
              2 * probes.bandwidths[i - 1].working_set_bytes);
  }
  const std::int64_t all = slow.largest_count * 4 * at::get_num_threads();
  EXPECT_LE(all, probes.bandwidths.back().working_set_bytes);
  EXPECT_GT(2 * all, probes.bandwidths.back().working_set_bytes);
}

TEST(Probe, RepeatsShortWorkAlthoughTheFirstRunsAreDisturbed) {
  SlowKernels slow;
  PeakKernels kernels = slow.kernels();
  std::atomic<int> runs = 0;
  std::atomic<std::int64_t> most_rounds = 0;
  kernels.multiply_adds = [&](std::int64_t rounds, float) {
    spin_ns(++runs <= 8 ? 1'000'000 : 50 * rounds);
    if (rounds > most_rounds) most_rounds = rounds;
    return 0.0F;
  };
  (void)probe_peaks(kernels);
  EXPECT_GE(most_rounds, 1024);  // 50 ns each, and a round of the probe lasts 100 us
}

}  // namespace
}  // namespace torchalgo

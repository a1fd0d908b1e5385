// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/probe.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>

#include "base/clock.h"

namespace torchalgo {
namespace {

constexpr double kRoundNs = 100e3;
constexpr std::int64_t kLeastSet = 1 << 14, kLargestSet = 1 << 26;  // of all threads together
constexpr std::int64_t kStep = 256;                                 // floats, see kernels/peak.h

double now_ns() { return static_cast<double>(steady_now_ns()); }

// Runs `work` on `threads` threads at once. Returns the longest time in ns that it took on a
// thread. This leaves out how long a thread waits for a core. While another program keeps the core,
// for example the worker that measures and has just been started, that is several milliseconds.
double timed_ns(int threads, const std::function<void(std::int64_t thread)>& work) {
  std::atomic<double> longest = 0;
  at::parallel_for(0, threads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t thread = begin; thread < end; ++thread) {
      const double start = now_ns();
      work(thread);
      const double own = now_ns() - start;
      double seen = longest.load();
      while (own > seen && !longest.compare_exchange_weak(seen, own)) {
      }
    }
  });
  return longest;
}

// Returns the highest rate, where a repetition does `amount` of work. Repetitions are doubled until
// the shortest of `rounds` rounds lasts kRoundNs. If one disturbed round could end the doubling, a
// round might do so little work that its rate is far too low, which is no valid bound of costs.
double best_rate(double amount, int rounds,
                 const std::function<double(std::int64_t repetitions)>& time_ns) {
  std::int64_t repetitions = 1;
  double best = time_ns(repetitions);
  for (int round = 1; round < rounds; ++round) {
    best = std::min(best, time_ns(repetitions));
    if (best >= kRoundNs) continue;
    repetitions *= 2;
    best = time_ns(repetitions);
    round = 0;
  }
  return amount * static_cast<double>(repetitions) / best;
}

// Stores a result so that the compiler keeps its computation.
void keep(float value) {
  static std::atomic<float> sink;
  sink.store(value, std::memory_order_relaxed);
}

double read_rate(const PeakKernels& kernels, const std::vector<at::Tensor>& of_thread,
                 std::int64_t count, int rounds) {
  const int threads = static_cast<int>(of_thread.size());
  return best_rate(4.0 * static_cast<double>(threads * count), rounds, [&](std::int64_t times) {
    return timed_ns(threads, [&](std::int64_t thread) {
      const float* data = of_thread[thread].const_data_ptr<float>();
      float sum = 0;
      for (std::int64_t i = 0; i < times; ++i) sum += kernels.reads(data, count);
      keep(sum);
    });
  });
}

// Returns the rate of copying half of the working set to the other half.
double copy_rate(const PeakKernels& kernels, const std::vector<at::Tensor>& of_thread,
                 std::int64_t count, int rounds) {
  const int threads = static_cast<int>(of_thread.size());
  const std::int64_t half = count / 2;
  return best_rate(8.0 * static_cast<double>(threads * half), rounds, [&](std::int64_t times) {
    return timed_ns(threads, [&](std::int64_t thread) {
      float* data = of_thread[thread].mutable_data_ptr<float>();
      for (std::int64_t i = 0; i < times; ++i) kernels.copy(data, data + half, half);
    });
  });
}

}  // namespace

Probes probe_peaks(const PeakKernels& kernels, int rounds) {
  const int threads = at::get_num_threads();
  Probes probes;
  probes.flops_per_ns =
      best_rate(threads * kernels.flops_per_round, 3 * rounds, [&](std::int64_t repetitions) {
        return timed_ns(threads, [&](std::int64_t thread) {
          keep(kernels.multiply_adds(repetitions, 0.25F + 0.001F * static_cast<float>(thread)));
        });
      });
  std::vector<at::Tensor> of_thread;
  for (int i = 0; i < threads; ++i) {
    of_thread.push_back(at::zeros({kLargestSet / 4 / threads}, at::kFloat));
  }
  for (std::int64_t bytes = kLeastSet; bytes <= kLargestSet; bytes *= 2) {
    const std::int64_t count =
        std::max(bytes / 4 / threads / (2 * kStep), std::int64_t{1}) * 2 * kStep;
    const int times = bytes > (1 << 23) ? 3 : rounds;  // a pass lasts milliseconds
    probes.bandwidths.push_back({bytes, std::max(read_rate(kernels, of_thread, count, times),
                                                 copy_rate(kernels, of_thread, count, times))});
  }
  return probes;
}

}  // namespace torchalgo

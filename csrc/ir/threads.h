// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace torchalgo::cpu {

/// The threads of the program that runs a kernel: torch's, or any other pool.
struct Threads {
  using Body = void (*)(const void* body, std::int64_t begin, std::int64_t end);
  /// Splits [0, count) into ranges and invokes call(body, begin, end) on each. A range has at least
  /// `grain` tasks, unless fewer are left. Returns after every invocation has finished.
  void (*run)(void* pool, std::int64_t count, std::int64_t grain, Body call,
              const void* body) = nullptr;
  void* pool = nullptr;
};

/// Calls body(begin, end) for ranges of at least `grain` tasks that cover [0, count).
template <class Function>
void parallel_for(const Threads& threads, std::int64_t count, std::int64_t grain,
                  const Function& body) {
  const auto call = [](const void* function, std::int64_t begin, std::int64_t end) {
    (*static_cast<const Function*>(function))(begin, end);
  };
  threads.run(threads.pool, count, grain, call, &body);
}

/// The tasks of one call, divided into slices of adjacent tasks. The thread of a slice takes its
/// own tasks in order. After that it takes the last tasks of slices that have tasks left. So a
/// thread whose core does something else as well does not hold up the others.
class SharedTasks {
 public:
  static constexpr std::int64_t kMostSlices = 128;  // they lie on the stack

  /// `slices` is at most kMostSlices.
  SharedTasks(std::int64_t tasks, std::int64_t slices) : count_(static_cast<std::size_t>(slices)) {
    for (std::int64_t i = 0; i < slices; ++i)
      slices_[static_cast<std::size_t>(i)].set(tasks * i / slices, tasks * (i + 1) / slices);
  }

  /// Returns a task that no other call has returned, or -1 if none is left.
  std::int64_t next(std::int64_t slice) {
    const auto own = static_cast<std::size_t>(slice);
    std::int64_t task = slices_[own].take_first();
    for (std::size_t i = 1; i < count_ && task < 0; ++i)
      task = slices_[(own + i) % count_].take_last();
    return task;
  }

 private:
  class alignas(64) Slice {
   public:
    void set(std::int64_t begin, std::int64_t end) {
      bounds_ = static_cast<std::uint64_t>(begin) * kBegin + static_cast<std::uint64_t>(end);
    }
    std::int64_t take_first() {
      return take([](std::uint64_t bounds) { return bounds + kBegin; }, /*is_first=*/true);
    }
    std::int64_t take_last() {
      return take([](std::uint64_t bounds) { return bounds - 1; }, /*is_first=*/false);
    }

   private:
    static constexpr std::uint64_t kBegin = std::uint64_t{1} << 32;

    template <class Change>
    std::int64_t take(const Change& change, bool is_first) {
      std::uint64_t seen = bounds_.load(std::memory_order_relaxed);
      while (seen / kBegin < seen % kBegin) {
        if (bounds_.compare_exchange_weak(seen, change(seen), std::memory_order_relaxed))
          return static_cast<std::int64_t>(is_first ? seen / kBegin : seen % kBegin - 1);
      }
      return -1;
    }

    std::atomic<std::uint64_t> bounds_ = 0;  // the first task in the upper half, the end below
  };

  std::size_t count_;
  std::array<Slice, kMostSlices> slices_;
};

/// Returns into how many tasks to divide work for run_in_slices(): a multiple of `threads`, at most
/// `most` but at least `threads`.
[[nodiscard]] constexpr std::int64_t tasks_for(std::int64_t threads, std::int64_t most) {
  constexpr std::int64_t kTasksPerThread = 4;
  return threads * std::clamp<std::int64_t>(most / threads, 1, kTasksPerThread);
}

/// Calls body(next, slice) at most `slices` times at once, and no more than kMostSlices times,
/// where next() returns another task of [0, tasks) at each call, and -1 if none is left. Each call
/// has a slice number of its own, below `slices`. There are fewer than 2^32 tasks.
template <class Function>
void run_in_slices(const Threads& threads, std::int64_t tasks, std::int64_t slices,
                   const Function& body) {
  const std::int64_t parts = std::min({tasks, slices, SharedTasks::kMostSlices});
  SharedTasks shared(tasks, parts);
  parallel_for(threads, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part)
      body([&shared, part] { return shared.next(part); }, part);
  });
}

/// Does the same for kernels that take ranges of tasks: calls body(begin, end, slice).
template <class Function>
void run_ranges_in_slices(const Threads& threads, std::int64_t tasks, std::int64_t slices,
                          const Function& body) {
  run_in_slices(threads, tasks, slices, [&](const auto& next, std::int64_t slice) {
    for (std::int64_t task = next(); task >= 0; task = next()) body(task, task + 1, slice);
  });
}

}  // namespace torchalgo::cpu

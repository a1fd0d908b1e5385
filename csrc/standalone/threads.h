// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
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

/// Splits [0, tasks) into at most `slices` parts and calls body(begin, end, slice) for each. Each
/// part has a slice number of its own, below `slices`. The split does not depend on the number of
/// threads.
template <class Function>
void run_in_slices(const Threads& threads, std::int64_t tasks, std::int64_t slices,
                   const Function& body) {
  const std::int64_t parts = std::min(tasks, slices);
  parallel_for(threads, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part)
      body(tasks * part / parts, tasks * (part + 1) / parts, part);
  });
}

}  // namespace torchalgo::cpu

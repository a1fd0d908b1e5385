// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// at::parallel_for by std::thread, for ThreadSanitizer, which does not know the barriers of OpenMP:
// included before everything else (scripts/sanitize.sh), in a build without OpenMP. ATen's own
// header takes a definition like this from ParallelOpenMP.h.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#define INTRA_OP_PARALLEL

namespace at {

int get_num_threads();

namespace internal {

template <typename F>
inline void invoke_parallel(std::int64_t begin, std::int64_t end, std::int64_t grain_size,
                            const F& f) {
  const std::int64_t most = grain_size > 0 ? (end - begin + grain_size - 1) / grain_size
                                           : static_cast<std::int64_t>(get_num_threads());
  const std::int64_t count = std::min<std::int64_t>(get_num_threads(), most);
  const std::int64_t chunk = (end - begin + count - 1) / count;
  std::exception_ptr failure;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (std::int64_t from = begin; from < end; from += chunk) {
    threads.emplace_back([&, from] {
      try {
        f(from, std::min(end, from + chunk));
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace internal
}  // namespace at

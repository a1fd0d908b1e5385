// SPDX-License-Identifier: BSD-3-Clause
// Included before everything else in a build with ThreadSanitizer, which knows the threads of the
// C++ library and not those of OpenMP: at::parallel_for runs on std::thread, in the same parts.
#undef _OPENMP
#define INTRA_OP_PARALLEL

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace at {
int get_num_threads();

namespace internal {

template <class Run>
void invoke_parallel(std::int64_t begin, std::int64_t end, std::int64_t grain_size,
                     const Run& run) {
  const std::int64_t grain = std::max<std::int64_t>(grain_size, 1);
  const std::int64_t threads =
      std::min<std::int64_t>(get_num_threads(), (end - begin + grain - 1) / grain);
  const std::int64_t chunk = (end - begin + threads - 1) / threads;
  std::mutex mutex;
  std::exception_ptr error;
  std::vector<std::thread> workers;
  for (std::int64_t first = begin; first < end; first += chunk) {
    workers.emplace_back([&, first] {
      try {
        run(first, std::min(end, first + chunk));
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace internal
}  // namespace at

// SPDX-License-Identifier: BSD-3-Clause
#include "provider/call_threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/usable_threads.h"
#include "ir/thread_pool.h"

namespace torchalgo {
namespace {

// A thread has lost its core if it ends its range of a region this much later than another one, and
// needs twice as long. A thread that sleeps is awake after 0.1 ms. One that has lost its core gets
// it back after a few milliseconds.
constexpr std::int64_t kLongWaitNs = 1'000'000;

// The pool is used after two such waits within this time. On a quiet machine there are single ones,
// some per second.
constexpr std::int64_t kNearNs = 50'000'000;

// How long the pool is used then. The time doubles if regions of OpenMP have taken less than
// kCalmNs in all since then. So on a busy machine the returns cost little.
constexpr std::int64_t kLeastTimeNs = 100'000'000, kMostTimeNs = 3'200'000'000;
constexpr std::int64_t kCalmNs = 500'000'000;

thread_local bool has_guard = false;

// All threads of the process share these values, because they run on the same cores.
std::atomic<std::int64_t> last_wait_ns = -kNearNs;
std::atomic<std::int64_t> pool_until_ns = 0, pool_time_ns = 0;
std::atomic<std::int64_t> openmp_ns = kCalmNs;  // of regions since the pool was used

void tell_long_wait(std::int64_t now_ns) {
  const std::int64_t last_ns = last_wait_ns.exchange(now_ns, std::memory_order_relaxed);
  if (now_ns - last_ns > kNearNs) return;
  if (now_ns < pool_until_ns.load(std::memory_order_relaxed)) return;  // seen by another thread
  const bool is_calm = openmp_ns.exchange(0, std::memory_order_relaxed) >= kCalmNs;
  const std::int64_t time_ns =
      is_calm ? kLeastTimeNs
              : std::min(2 * pool_time_ns.load(std::memory_order_relaxed), kMostTimeNs);
  pool_time_ns.store(time_ns, std::memory_order_relaxed);
  pool_until_ns.store(now_ns + time_ns, std::memory_order_relaxed);
}

void run_on_openmp(void*, std::int64_t count, std::int64_t grain, cpu::Threads::Body call,
                   const void* body) {
  at::parallel_for(0, count, grain,
                   [&](std::int64_t begin, std::int64_t end) { call(body, begin, end); });
}

// All threads read the clock. If only the caller did, as was tried to save 1 % of small networks, a
// caller that has lost its own core would not be noticed: it ends last, and others wait for it.
void run_and_watch(void*, std::int64_t count, std::int64_t grain, cpu::Threads::Body call,
                   const void* body) {
  const std::int64_t start_ns = steady_now_ns();
  std::atomic<std::int64_t> first_end_ns = std::numeric_limits<std::int64_t>::max();
  at::parallel_for(0, count, grain, [&](std::int64_t begin, std::int64_t end) {
    call(body, begin, end);
    const std::int64_t now_ns = steady_now_ns();
    std::int64_t seen_ns = first_end_ns.load(std::memory_order_relaxed);
    while (now_ns < seen_ns && !first_end_ns.compare_exchange_weak(seen_ns, now_ns)) {
    }
  });
  const std::int64_t end_ns = steady_now_ns(), first_ns = first_end_ns;
  openmp_ns.fetch_add(end_ns - start_ns, std::memory_order_relaxed);
  if (end_ns - first_ns > std::max(kLongWaitNs, first_ns - start_ns)) tell_long_wait(end_ns);
}

}  // namespace

cpu::Threads call_threads() {
  static const int usable = usable_threads();
  const int threads = at::get_num_threads();
  // OpenMP knows that the caller is inside a region already, and the pool does not. With more
  // threads than slices, the pool divides in another way, which may change bits.
  if (has_guard || threads == 1 || threads > cpu::SharedTasks::kMostSlices ||
      at::in_parallel_region())
    return {run_on_openmp};
  const bool needs_pool =
      threads > usable || steady_now_ns() < pool_until_ns.load(std::memory_order_relaxed);
  return needs_pool ? cpu::pool_threads(threads, usable) : cpu::Threads{run_and_watch};
}

OpenMpGuard::OpenMpGuard() : before_(std::exchange(has_guard, true)) {}
OpenMpGuard::~OpenMpGuard() { has_guard = before_; }

}  // namespace torchalgo

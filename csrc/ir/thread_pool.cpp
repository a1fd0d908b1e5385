// SPDX-License-Identifier: BSD-3-Clause
#include "ir/thread_pool.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/usable_threads.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kMostParts = SharedTasks::kMostSlices;
constexpr std::int64_t kWaitNs = 20'000;  // how long a caller polls for the end of others' ranges
constexpr std::int64_t kLostCoreNs = 100'000;  // two polls are never so far apart on a free core
constexpr int kSleeps = 1 << 30;

thread_local bool is_inside = false;  // of a range: further calls run on this thread

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The control register of floating-point arithmetic: rounding and denormals.
std::uint64_t float_mode() {
#if defined(__x86_64__)
  constexpr unsigned kFlags = 0x3F;  // of exceptions so far
  return __builtin_ia32_stmxcsr() & ~kFlags;
#elif defined(__aarch64__)
  std::uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#else
  return 0;
#endif
}

void set_float_mode([[maybe_unused]] std::uint64_t mode) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(static_cast<unsigned>(mode));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(mode));
#endif
}

// Returns how long a worker without work polls: $TORCHALGO_POLL_US, or 50 us.
std::int64_t polling_time_ns() {
  constexpr std::uint32_t kDefaultUs = 50;
  const char* const setting = std::getenv("TORCHALGO_POLL_US");
  const std::string_view text = setting == nullptr ? "" : setting;
  std::uint32_t us = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), us);
  if (error == std::errc() && end == text.data() + text.size()) return std::int64_t{1000} * us;
  if (!text.empty())
    fmt::print(stderr,
               "torchalgo: TORCHALGO_POLL_US={}, expected whole microseconds; it polls {}\n", text,
               kDefaultUs);
  return std::int64_t{1000} * kDefaultUs;
}

// Returns true as soon as `is_done()`, and false after `time_ns` or if the core was taken away.
template <class Condition>
bool poll(std::int64_t time_ns, const Condition& is_done) {
  constexpr int kPollsPerClock = 16;
  const std::int64_t start = steady_now_ns();
  std::int64_t now = start;
  for (std::int64_t last = start; now - start < time_ns && now - last < kLostCoreNs;) {
    for (int i = 0; i < kPollsPerClock; ++i) {
      if (is_done()) return true;
      pause();
    }
    last = now;
    now = steady_now_ns();
  }
  return is_done();
}

// A call of Threads::run. Its memory is used again for other calls, and never freed.
//
// A thread takes a part by changing the part's flag from true to false. Only the thread that has
// taken a part reads the fields of `Call`. The flag was set after these fields were written, and
// the caller returns only after each part that was taken has been counted in `unfinished_`. So no
// thread reads fields of a call that has ended, however late it is: it finds either false flags, or
// flags of a later call. These it may take, because it has read nothing of the earlier call.
class alignas(64) Region {
 public:
  // Reserves the region for a caller. Returns false if another one has it.
  bool reserve() {
    return !is_reserved_.load(std::memory_order_relaxed) &&
           !is_reserved_.exchange(true, std::memory_order_acquire);
  }
  void release() { is_reserved_.store(false, std::memory_order_release); }

  // Offers all parts but the first.
  void offer(std::int64_t count, std::int64_t chunk, int parts, Threads::Body call,
             const void* body) {
    call_ = {count, chunk, call, body, float_mode()};
    has_failed_.store(false, std::memory_order_relaxed);
    unfinished_.store(parts - 1, std::memory_order_relaxed);
    parts_.store(parts, std::memory_order_relaxed);
    for (int part = 1; part < parts; ++part) flag(part).store(true, std::memory_order_release);
  }

  // Computes the first part and those that nobody else takes. Waits for the others.
  void finish() {
    compute(0);
    const int parts = parts_.load(std::memory_order_relaxed);
    int own = 0;
    for (int part = parts - 1; part > 0; --part) {  // the workers of the last parts start last
      if (!take(part)) continue;
      compute(part);
      ++own;
    }
    if (unfinished_.fetch_sub(own) != own) wait();
    parts_.store(1, std::memory_order_relaxed);  // a hint: nobody need look here
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  // Computes a part for the caller, if one is left: `preferred`, so that a worker computes the same
  // part of each call, whose data may lie in its cache.
  template <class Taken>
  bool help(int preferred, const Taken& when_taken) {
    const int parts = parts_.load(std::memory_order_relaxed);
    for (int i = 0; i < parts; ++i) {
      const int part = (preferred + i) % parts;
      if (!take(part)) continue;
      when_taken(*this);
      if (call_.float_mode != float_mode()) set_float_mode(call_.float_mode);
      compute(part);
      if (unfinished_.fetch_sub(1) == kSleeps + 1) unfinished_.notify_one();
      return true;
    }
    return false;
  }

  [[nodiscard]] bool has_offers() const {
    const int parts = parts_.load(std::memory_order_relaxed);
    return std::any_of(flags_.begin(), flags_.begin() + parts,
                       [](const auto& flag) { return flag.load(std::memory_order_relaxed); });
  }

 private:
  struct Call {
    std::int64_t count = 0, chunk = 0;
    Threads::Body call = nullptr;
    const void* body = nullptr;
    std::uint64_t float_mode = 0;
  };

  std::atomic<bool>& flag(int part) { return flags_[static_cast<std::size_t>(part)]; }

  bool take(int part) {
    return flag(part).load(std::memory_order_relaxed) &&
           flag(part).exchange(false, std::memory_order_acquire);
  }

  void compute(int part) noexcept {
    const std::int64_t begin = part * call_.chunk;
    try {
      call_.call(call_.body, begin, std::min(begin + call_.chunk, call_.count));
    } catch (...) {
      if (!has_failed_.exchange(true)) failure_ = std::current_exception();
    }
  }

  void wait() {
    if (poll(kWaitNs, [&] { return unfinished_.load(std::memory_order_acquire) == 0; })) return;
    for (int seen = unfinished_.fetch_add(kSleeps) + kSleeps; seen != kSleeps;) {
      unfinished_.wait(seen);
      seen = unfinished_.load();
    }
  }

  std::atomic<bool> is_reserved_ = false;
  std::atomic<int> parts_ = 1;
  Call call_;
  std::exception_ptr failure_;
  std::atomic<bool> has_failed_ = false;
  alignas(64) std::array<std::atomic<bool>, kMostParts> flags_ = {};
  // Parts that were offered and are not computed, and kSleeps if the caller sleeps until the end.
  alignas(64) std::atomic<int> unfinished_ = 0;
};

class Pool {
 public:
  void run(int threads, int at_once, std::int64_t count, std::int64_t grain, Threads::Body call,
           const void* body) {
    if (count <= 0) return;
    // The ranges are those of at::parallel_for. So a sum that is split by ranges keeps its bits.
    const auto quotient = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    const std::int64_t most = std::min(
        {std::int64_t{threads}, kMostParts, quotient(count, std::max<std::int64_t>(grain, 1))});
    const std::int64_t chunk = quotient(count, most);
    const int parts = static_cast<int>(quotient(count, chunk));
    const std::size_t number = parts > 1 && !is_inside ? reserve() : regions_.size();
    if (number == regions_.size()) return call(body, 0, count);
    Region& region = regions_[number];
    const Inside inside(region);
    region.offer(count, chunk, parts, call, body);
    changes_.fetch_add(1);
    // Every caller may have helpers of its own, as far as there are cores.
    const int helpers = std::min(parts, at_once) - 1, all = static_cast<int>(number + 1) * helpers;
    if (workers_.load(std::memory_order_relaxed) < all) add_workers(helpers, all);
    // A worker that is woken wakes others. So the caller pays for one.
    if (polling_.load() < helpers) changes_.notify_one();
    region.finish();
  }

 private:
  // Frees the region when the caller is done with it.
  class Inside {
   public:
    explicit Inside(Region& region) : region_(region) { is_inside = true; }
    ~Inside() {
      is_inside = false;
      region_.release();
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Region& region_;
  };

  std::size_t reserve() {
    const auto free = std::find_if(regions_.begin(), regions_.end(),
                                   [](Region& region) { return region.reserve(); });
    return static_cast<std::size_t>(free - regions_.begin());
  }

  void add_workers(int least, int most) {
    const std::unique_lock lock(growth_, std::try_to_lock);  // another caller adds some: enough
    if (!lock || cannot_grow_) return;
    if (usable_ == 0) usable_ = usable_threads();
    const int wanted = std::max(least, std::min(most, usable_ - 1));
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (int number = workers_; number < wanted; ++number) {
        std::thread([this, number] { work(number + 1); }).detach();
        workers_ = number + 1;
      }
    } catch (const std::system_error&) {
      cannot_grow_ = true;  // the system allows no more threads
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  [[noreturn]] void work(int number) {
    is_inside = true;
    std::size_t place = 0;  // of the region that was helped last
    bool has_slept = true;
    for (;;) {
      const int seen = changes_.load();
      while (help(number, place, has_slept)) has_slept = false;
      polling_.fetch_add(1);
      const bool has_changed =
          poll(polling_time_ns_, [&] { return changes_.load(std::memory_order_relaxed) != seen; });
      polling_.fetch_sub(1);
      if (has_changed) continue;
      changes_.wait(seen);  // returns at once if a caller has come since
      has_slept = true;
    }
  }

  bool help(int number, std::size_t& place, bool has_slept) {
    const auto wake_two = [&](const Region& region) {
      for (int i = 0; has_slept && i < 2 && region.has_offers(); ++i) changes_.notify_one();
    };
    for (std::size_t i = 0; i < regions_.size(); ++i) {
      const std::size_t other = (place + i) % regions_.size();
      if (!regions_[other].help(number, wake_two)) continue;
      place = other;
      return true;
    }
    return false;
  }

  const std::int64_t polling_time_ns_ = polling_time_ns();
  alignas(64) std::atomic<int> changes_ = 0;  // counts calls; who finds no work waits for a change
  alignas(64) std::atomic<int> polling_ = 0;  // workers without work that are awake
  alignas(64) std::atomic<int> workers_ = 0;
  std::array<Region, 16> regions_;  // of callers at the same time; more of them run alone
  std::mutex growth_;               // guards all that follows
  bool cannot_grow_ = false;
  int usable_ = 0;  // of usable_threads(), 0 before it was needed
};

// Never destroyed, because workers use it until the process ends. A child after fork() has no
// workers, and locks of the parent's pool may be held for ever there, so it makes a new one.
std::atomic<Pool*> shared_pool = nullptr;
const int fork_handler = pthread_atfork(nullptr, nullptr, [] { shared_pool = nullptr; });

Pool& pool() {
  Pool* seen = shared_pool.load(std::memory_order_acquire);
  if (seen != nullptr) return *seen;
  auto made = std::make_unique<Pool>();
  if (shared_pool.compare_exchange_strong(seen, made.get())) return *made.release();
  return *seen;
}

}  // namespace

Threads pool_threads(int threads, int at_once) {
  constexpr std::uintptr_t kBase = 1 << 16;
  const auto run = [](void* numbers, std::int64_t count, std::int64_t grain, Threads::Body call,
                      const void* body) {
    const auto both = reinterpret_cast<std::uintptr_t>(numbers);
    pool().run(static_cast<int>(both / kBase), static_cast<int>(both % kBase), count, grain, call,
               body);
  };
  // The pool needs no pointer, but both numbers belong to the call.
  const auto bounded = [](int number) {
    return static_cast<std::uintptr_t>(std::clamp(number, 1, static_cast<int>(kBase) - 1));
  };
  return {run, reinterpret_cast<void*>(bounded(threads) * kBase + bounded(at_once))};
}

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace torchalgo {

/// A primitive that is ready to be timed.
struct Runnable {
  std::function<void()> refresh;  // writes the inputs before each sample, untimed; may be null
  std::function<void()> run;      // runs once, on the next of its buffers
};

/// Takes samples of one Runnable that is warmed up.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  /// Runs once and returns the time in ns.
  [[nodiscard]] virtual double sample_ns() = 0;
  /// Returns how time is taken: "host", "events" or "graph".
  [[nodiscard]] virtual std::string method() const = 0;
};

/// Takes time on one kind of device. It is an argument, so that tests need neither a clock nor a
/// GPU.
class Timer {
 public:
  virtual ~Timer() = default;
  /// Runs `work` at least `warmup` times, until it is ready to be timed. `work` must outlive the
  /// result.
  [[nodiscard]] virtual std::unique_ptr<Stopwatch> warm_up(const Runnable& work, int warmup) = 0;
  /// Returns the time in ns, for time budgets.
  [[nodiscard]] virtual std::int64_t now_ns() = 0;
  /// Returns the size of the cache that must hold nothing that a run reads. Returns 0 if the inputs
  /// of each sample are in the caches, as refresh() leaves them.
  [[nodiscard]] virtual std::int64_t cold_cache_bytes() const { return 0; }
  /// Sets state that work needs while it is prepared and timed, such as a stream. The state ends
  /// with the result, which may be null.
  [[nodiscard]] virtual std::shared_ptr<void> enter() { return nullptr; }
};

/// Returns the timer of a device whose work is done when the call returns. It reads a clock before
/// and after. If `now_ns` is null, it is the steady clock.
[[nodiscard]] std::shared_ptr<Timer> host_timer(std::function<std::int64_t()> now_ns = nullptr);

}  // namespace torchalgo

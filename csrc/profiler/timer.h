// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace torchalgo {

/// A primitive that is ready to run again and again, as a timer sees it.
struct Runnable {
  std::function<void()> refresh;  // before each sample, not timed: writes the inputs; may be null
  std::function<void()> run;      // once, on the next of its buffers
};

/// Takes samples of one Runnable, which is warm.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  /// ns of one run.
  [[nodiscard]] virtual double sample_ns() = 0;
  /// How it takes time: "host", "events", "graph".
  [[nodiscard]] virtual std::string method() const = 0;
};

/// A way to take time. An argument, so that tests need neither a clock nor a GPU.
class Timer {
 public:
  virtual ~Timer() = default;
  /// Runs `work` at least `warmup` times, until it is ready to be timed. `work` outlives the
  /// result.
  [[nodiscard]] virtual std::unique_ptr<Stopwatch> warm_up(const Runnable& work, int warmup) = 0;
  /// For budgets.
  [[nodiscard]] virtual std::int64_t now_ns() = 0;
  /// 0: each sample finds its inputs in the caches, as refresh() leaves them. Else nothing that a
  /// run reads may be in a cache of this size.
  [[nodiscard]] virtual std::int64_t cold_cache_bytes() const { return 0; }
  /// What holds while work is prepared and timed, such as a stream; ends with the result.
  [[nodiscard]] virtual std::shared_ptr<void> enter() { return nullptr; }
};

/// Of a device whose work is done when its call returns: a clock before and after. Null `now_ns`:
/// the steady clock.
[[nodiscard]] std::shared_ptr<Timer> host_timer(std::function<std::int64_t()> now_ns = nullptr);

}  // namespace torchalgo

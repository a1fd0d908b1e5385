// SPDX-License-Identifier: BSD-3-Clause
#include <utility>

#include "base/clock.h"
#include "profiler/timer.h"
#include "provider/call_threads.h"

namespace torchalgo {
namespace {

using Clock = std::function<std::int64_t()>;

class HostStopwatch : public Stopwatch {
 public:
  HostStopwatch(const Runnable& work, const Clock& now_ns) : work_(work), now_ns_(now_ns) {}
  double sample_ns() override {
    const OpenMpGuard same_threads;  // for each candidate
    if (work_.refresh) work_.refresh();
    const std::int64_t start = now_ns_();
    work_.run();
    return static_cast<double>(now_ns_() - start);
  }
  std::string method() const override { return "host"; }

 private:
  const Runnable& work_;
  const Clock& now_ns_;
};

class HostTimer : public Timer {
 public:
  explicit HostTimer(Clock now_ns) : now_ns_(std::move(now_ns)) {}
  std::unique_ptr<Stopwatch> warm_up(const Runnable& work, int warmup) override {
    auto stopwatch = std::make_unique<HostStopwatch>(work, now_ns_);
    for (int run = 0; run < warmup; ++run) static_cast<void>(stopwatch->sample_ns());
    return stopwatch;
  }
  std::int64_t now_ns() override { return now_ns_(); }

 private:
  Clock now_ns_;
};

}  // namespace

std::shared_ptr<Timer> host_timer(std::function<std::int64_t()> now_ns) {
  return std::make_shared<HostTimer>(now_ns ? std::move(now_ns) : Clock(steady_now_ns));
}

}  // namespace torchalgo

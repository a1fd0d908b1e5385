// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/cuda_timer.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace torchalgo {
namespace {

double time_once(const CudaQueue& queue, const std::function<void()>& enqueue) {
  // Flushing also keeps the GPU busy while the host enqueues the events and the work. So the events
  // measure the GPU's time and not the host's.
  queue.flush_l2();
  queue.record_start();
  enqueue();
  queue.record_stop();
  return queue.elapsed_ns();
}

class EventStopwatch : public Stopwatch {
 public:
  EventStopwatch(const Runnable& work, const CudaQueue& queue) : work_(work), queue_(queue) {}
  double sample_ns() override {
    if (work_.refresh) work_.refresh();
    return time_once(queue_, work_.run);
  }
  std::string method() const override { return "events"; }

 private:
  const Runnable& work_;
  const CudaQueue& queue_;
};

class GraphStopwatch : public Stopwatch {
 public:
  GraphStopwatch(std::function<void()> launch, int runs, const CudaQueue& queue)
      : launch_(std::move(launch)), runs_(runs), queue_(queue) {}
  double sample_ns() override { return time_once(queue_, launch_) / runs_; }
  std::string method() const override { return "graph"; }

 private:
  std::function<void()> launch_;
  int runs_;
  const CudaQueue& queue_;
};

class CudaTimer : public Timer {
 public:
  CudaTimer(CudaQueue queue, const CudaTimerOptions& options)
      : queue_(std::move(queue)), options_(options) {}

  std::unique_ptr<Stopwatch> warm_up(const Runnable& work, int warmup) override {
    auto events = std::make_unique<EventStopwatch>(work, queue_);
    const double run_ns = run_until_stable(*events, warmup);
    if (!queue_.capture) return events;
    const int runs =
        std::clamp(static_cast<int>(std::ceil(options_.graph_ns / run_ns)), 1, options_.most_runs);
    std::function<void()> launch;
    try {
      launch = queue_.capture([&] {
        for (int run = 0; run < runs; ++run) work.run();
      });
    } catch (const std::exception&) {
      return events;  // some work cannot be captured; method() tells which
    }
    auto graph = std::make_unique<GraphStopwatch>(std::move(launch), runs, queue_);
    static_cast<void>(graph->sample_ns());  // the first launch uploads it
    return graph;
  }

  std::int64_t now_ns() override { return steady_now_ns(); }
  std::int64_t cold_cache_bytes() const override { return queue_.l2_bytes; }
  std::shared_ptr<void> enter() override { return queue_.enter ? queue_.enter() : nullptr; }

 private:
  // Returns the fastest of the last samples.
  double run_until_stable(Stopwatch& stopwatch, int warmup) const {
    std::vector<double> last;
    for (int run = 0; run < options_.most_warmups; ++run) {
      last.push_back(stopwatch.sample_ns());
      if (static_cast<int>(last.size()) > options_.stable_samples) last.erase(last.begin());
      if (run + 1 < std::max(warmup, options_.stable_samples)) continue;
      const auto [least, most] = std::minmax_element(last.begin(), last.end());
      if (*most <= options_.stable_ratio * *least) break;
    }
    return *std::min_element(last.begin(), last.end());
  }

  CudaQueue queue_;
  CudaTimerOptions options_;
};

}  // namespace

std::shared_ptr<Timer> cuda_timer(CudaQueue queue, const CudaTimerOptions& options) {
  return std::make_shared<CudaTimer>(std::move(queue), options);
}

}  // namespace torchalgo

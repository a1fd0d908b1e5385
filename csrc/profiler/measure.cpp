// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/measure.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "profiler/bench.h"
#include "profiler/check.h"
#include "profiler/cuda_timer.h"
#include "provider/cuda_device.h"

namespace torchalgo {
namespace {

using Benches = std::vector<std::unique_ptr<Bench>>;

// One failing task is out, the others go on.
template <typename Action>
void attempt(std::size_t task, const Announce& announce, Samples& result, const Action& action) {
  if (!result.failure.empty()) return;
  if (announce) announce(task);
  try {
    action();
  } catch (const std::exception& error) {
    result.failure = error.what();
  }
}

Benches make_benches(const std::vector<Task>& tasks, const Algorithms& algorithms,
                     const MeasureOptions& options, std::int64_t cold_cache_bytes,
                     std::vector<Samples>& results) {
  std::map<std::string, Sample> samples;
  SharedTensors shared;
  Benches benches(tasks.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    attempt(i, options.announce, results[i], [&] {
      const Task& task = tasks[i];
      const Algorithm* const algorithm = find_algorithm(algorithms, task.primitive.name);
      TORCHALGO_CHECK(algorithm != nullptr, "measure: no algorithm has the name '{}'",
                      task.primitive.name);
      const auto [it, is_new] = samples.try_emplace(to_string(task.problem));
      if (is_new) {
        it->second = make_sample(task.problem, options.seed, torch_device(options.device));
      }
      benches[i] = cold_cache_bytes > 0
                       ? make_cold_bench(task, *algorithm, it->second, cold_cache_bytes, shared)
                       : make_warm_bench(task, *algorithm, it->second);
    });
  }
  return benches;
}

// The weights of the other tasks push a task's own out of the caches; copies do the rest.
void rotate_weights(const Benches& benches, std::int64_t cold_bytes) {
  constexpr std::int64_t kMostCopies = 15;
  std::int64_t bytes = 0;
  for (const auto& bench : benches) bytes += bench ? bench->packed_bytes() : 0;
  if (bytes == 0) return;
  const std::int64_t copies = std::clamp(cold_bytes / bytes, std::int64_t{0}, kMostCopies);
  for (const auto& bench : benches) {
    if (bench) bench->rotate_weights(copies);
  }
}

void take_samples(const Benches& benches, const MeasureOptions& options, Timer& timer,
                  std::vector<Samples>& results) {
  std::vector<std::unique_ptr<Stopwatch>> stopwatches(benches.size());
  for (std::size_t i = 0; i < benches.size(); ++i) {
    attempt(i, options.announce, results[i], [&] {
      stopwatches[i] = timer.warm_up(benches[i]->work(), options.warmup);
      results[i].method = stopwatches[i]->method();
    });
  }
  constexpr int kLeastRounds = 3;
  const std::int64_t start = timer.now_ns();
  for (int round = 0; round < options.rounds; ++round) {
    const double elapsed_s = static_cast<double>(timer.now_ns() - start) * 1e-9;
    if (round >= kLeastRounds && elapsed_s > options.budget_s) break;
    for (std::size_t i = 0; i < benches.size(); ++i) {
      attempt(i, options.announce, results[i],
              [&] { results[i].ns.push_back(stopwatches[i]->sample_ns()); });
    }
  }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const std::size_t half = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

Samples measure(const Problem& problem, const Primitive& primitive, const Algorithms& algorithms,
                const MeasureOptions& options) {
  return measure_interleaved({{problem, primitive}}, algorithms, options)[0];
}

std::vector<Samples> measure_interleaved(const std::vector<Task>& tasks,
                                         const Algorithms& algorithms,
                                         const MeasureOptions& options) {
  const at::NoGradGuard no_grad;
  std::shared_ptr<Timer> timer = options.timer;
  if (timer == nullptr) {
    timer = options.device.kind == DeviceKind::kCuda ? cuda_timer(cuda_queue(options.device))
                                                     : host_timer();
  }
  std::vector<Task> all = tasks;
  if (options.control && !tasks.empty()) all.push_back(tasks[0]);
  std::vector<Samples> results(all.size());
  const std::shared_ptr<void> inside = timer->enter();
  const Benches benches =
      make_benches(all, algorithms, options, timer->cold_cache_bytes(), results);
  rotate_weights(benches, options.cold_bytes);
  take_samples(benches, options, *timer, results);
  if (all.size() > tasks.size()) {
    const double first = median(results[0].ns), second = median(results.back().ns);
    results.pop_back();
    for (Samples& samples : results) samples.control_ratio = first > 0 ? second / first : 0;
  }
  return results;
}

}  // namespace torchalgo

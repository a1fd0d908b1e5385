// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/measure.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/error_code.h"
#include "profiler/bench.h"
#include "profiler/caches.h"
#include "profiler/check.h"
#include "profiler/cuda_timer.h"
#include "profiler/race.h"
#include "provider/cpu_device.h"
#include "provider/cuda_device.h"
#include "provider/kernel.h"

namespace torchalgo {
namespace {

using Benches = std::vector<std::unique_ptr<Bench>>;

// Runs an action of a task. If it fails, this task stops and the others continue.
template <typename Action>
void attempt(std::size_t task, const Announce& announce, Measurement& result,
             const Action& action) {
  if (!result.failure.empty()) return;
  if (announce) announce(task);
  try {
    action();
  } catch (const std::exception& error) {
    result.failure = without_code(error.what());
  }
}

// Samples that tasks share. A problem with fewer post-ops uses the sample of the one with the most.
class SharedSamples {
 public:
  SharedSamples(const std::vector<Task>& tasks, const MeasureOptions& options)
      : seed_(options.seed), device_(torch_device(options.device)) {
    for (const Task& task : tasks) {
      auto [richest, is_new] = richest_.try_emplace(family(task.problem), task.problem);
      if (epilogue_of(task.problem).size() > epilogue_of(richest->second).size()) {
        richest->second = task.problem;
      }
    }
  }

  Sample of(const Problem& problem) {
    const Problem& richest = richest_.at(family(problem));
    if (richest == problem || !serves(richest, problem)) return made(problem);
    Sample sample = made(richest);
    if (!has(epilogue_of(problem), PostOp::kAdd)) sample.residual = at::Tensor();
    if (!has(epilogue_of(problem), PostOp::kBias)) sample.weights[0].bias = at::Tensor();
    return sample;
  }

 private:
  static std::string family(const Problem& problem) {
    // The inputs of a lone activation have another distribution.
    const bool is_conv = std::holds_alternative<ConvProblem>(problem);
    return to_string(is_conv ? with_epilogue(problem, {}) : problem);
  }
  static bool serves(const Problem& richest, const Problem& problem) {
    const auto lacks = [&](const PostOp& op) {
      return has(epilogue_of(problem), op) && !has(epilogue_of(richest), op);
    };
    return !lacks(PostOp::kAdd) && !lacks(PostOp::kBias);
  }
  const Sample& made(const Problem& problem) {
    auto [sample, is_new] = made_.try_emplace(to_string(problem));
    if (is_new) sample->second = make_sample(problem, seed_, device_);
    return sample->second;
  }

  std::uint64_t seed_;
  at::Device device_;
  std::map<std::string, Problem> richest_;
  std::map<std::string, Sample> made_;
};

Benches make_benches(const std::vector<Task>& tasks, const Algorithms& algorithms,
                     const MeasureOptions& options, std::int64_t cold_cache_bytes,
                     std::vector<Measurement>& results) {
  SharedSamples samples(tasks, options);
  SharedTensors shared;
  const Device device =
      options.device.kind == DeviceKind::kCpu ? cpu_device() : options.device;  // with its threads
  const WeightsIn weights = weights_in(options.cold_bytes, cpu_device());
  Benches benches(tasks.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    attempt(i, options.announce, results[i], [&] {
      const Task& task = tasks[i];
      const Algorithm* const algorithm = find_algorithm(algorithms, task.primitive.name);
      TORCHALGO_CHECK(algorithm != nullptr, "TA4004 measure: no algorithm has the name '{}'",
                      task.primitive.name);
      const Sample sample = samples.of(task.problem);
      Kernel kernel = algorithm->prepare(task.problem, task.primitive, device);
      benches[i] = cold_cache_bytes > 0 ? make_cold_bench(std::move(kernel), sample, weights,
                                                          cold_cache_bytes, shared)
                                        : make_warm_bench(std::move(kernel), sample, weights);
    });
  }
  return benches;
}

using Stopwatches = std::vector<std::unique_ptr<Stopwatch>>;

Stopwatches warm_up(const Benches& benches, const MeasureOptions& options, Timer& timer,
                    std::vector<Measurement>& results) {
  Stopwatches stopwatches(benches.size());
  for (std::size_t i = 0; i < benches.size(); ++i) {
    attempt(i, options.announce, results[i], [&] {
      stopwatches[i] = timer.warm_up(benches[i]->work(), options.warmup);
      results[i].method = stopwatches[i]->method();
    });
  }
  return stopwatches;
}

// The time budget, which decides whether there is time for another round.
class Budget {
 public:
  Budget(Timer& timer, double seconds) : timer_(timer), seconds_(seconds), start_(timer.now_ns()) {}
  [[nodiscard]] bool allows(int round) const {
    constexpr int kLeastRounds = 3;
    const double elapsed_s = static_cast<double>(timer_.now_ns() - start_) * 1e-9;
    return round < kLeastRounds || elapsed_s <= seconds_;
  }

 private:
  Timer& timer_;
  const double seconds_;
  const std::int64_t start_;
};

void take_samples(const Stopwatches& stopwatches, const MeasureOptions& options, Timer& timer,
                  std::vector<Measurement>& results) {
  const Budget budget(timer, options.budget_s);
  for (int round = 0; round < options.rounds && budget.allows(round); ++round) {
    for (std::size_t i = 0; i < stopwatches.size(); ++i) {
      attempt(i, options.announce, results[i],
              [&] { results[i].ns.push_back(stopwatches[i]->sample_ns()); });
    }
  }
}

// Returns a number for each task. Tasks with the same problem and layouts compete, so they have the
// same number.
std::vector<std::size_t> places_of(const std::vector<Task>& tasks) {
  std::map<std::string, std::size_t> numbers;
  std::vector<std::size_t> places;
  for (const Task& task : tasks) {
    std::string place = to_string(task.problem);
    place += ' ';
    place += to_string(task.primitive.src);
    place += to_string(task.primitive.dst);
    places.push_back(numbers.try_emplace(place, numbers.size()).first->second);
  }
  return places;
}

// Returns one detector per thread, which keeps the speed of the processor from earlier calls.
std::shared_ptr<Calm> calm_of(const MeasureOptions& options) {
  if (options.calm != nullptr || options.device.kind != DeviceKind::kCpu) return options.calm;
  thread_local const std::shared_ptr<Calm> calm = host_calm();
  return calm;
}

void race(const std::vector<Task>& tasks, const Stopwatches& stopwatches,
          const MeasureOptions& options, Timer& timer, std::vector<Measurement>& results) {
  const RaceLength length = RaceLength::of(options.rounds);
  const Budget budget(timer, options.budget_s);
  const std::shared_ptr<Calm> calm = calm_of(options);
  std::vector<Racer> racers(tasks.size());
  const std::vector<std::size_t> places = places_of(tasks);
  for (std::size_t i = 0; i < tasks.size(); ++i) racers[i].place = places[i];
  const auto is_out = [](const Racer& racer) { return racer.is_out; };
  for (int round = 0; round < length.most && budget.allows(round); ++round) {
    const bool is_steady = calm == nullptr || calm->is_steady();
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      Racer& racer = racers[i];
      racer.is_out = racer.is_out || !results[i].failure.empty();
      if (racer.is_out) continue;
      attempt(i, options.announce, results[i], [&] {
        if (calm != nullptr) calm->begin();
        const double ns = stopwatches[i]->sample_ns();
        const bool is_calm = is_steady && (calm == nullptr || calm->was_alone());
        (is_calm ? racer.calm : racer.disturbed).push_back(ns);
      });
    }
    judge(racers, length);
    if (std::all_of(racers.begin(), racers.end(), is_out)) break;
  }
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    results[i].ns = racers[i].counted();
    const std::size_t taken = racers[i].calm.size() + racers[i].disturbed.size();
    results[i].disturbed = static_cast<int>(taken - results[i].ns.size());
  }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const std::size_t half = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

Measurement measure(const Problem& problem, const Primitive& primitive,
                    const Algorithms& algorithms, const MeasureOptions& options) {
  return measure_interleaved({{problem, primitive}}, algorithms, options)[0];
}

std::vector<Measurement> measure_interleaved(const std::vector<Task>& tasks,
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
  std::vector<Measurement> results(all.size());
  const std::shared_ptr<void> inside = timer->enter();
  const Benches benches =
      make_benches(all, algorithms, options, timer->cold_cache_bytes(), results);
  const Stopwatches stopwatches = warm_up(benches, options, *timer, results);
  if (options.race) {
    race(all, stopwatches, options, *timer, results);
  } else {
    take_samples(stopwatches, options, *timer, results);
  }
  if (all.size() > tasks.size()) {
    const double first = median(results[0].ns), second = median(results.back().ns);
    results.pop_back();
    for (Measurement& samples : results) samples.control_ratio = first > 0 ? second / first : 0;
  }
  return results;
}

}  // namespace torchalgo

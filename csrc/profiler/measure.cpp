// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/measure.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "profiler/check.h"

namespace torchalgo {
namespace {

std::int64_t steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int64_t bytes_of(const Packed& packed) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : packed) {
    if (tensor.defined() && tensor.has_storage())
      bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

// Everything one primitive needs to run, made before the clock starts.
class Bench {
 public:
  Bench(const Task& task, const Algorithms& algorithms, const Sample& sample)
      : problem_(task.problem), primitive_(task.primitive) {
    algorithm_ = find_algorithm(algorithms, primitive_.name);
    TORCHALGO_CHECK(algorithm_ != nullptr, "measure: no algorithm has the name '{}'",
                    primitive_.name);
    for (std::size_t i = 0; i < sample.src.size(); ++i) {
      produced_.push_back(to_layout(sample.src[i], input_layout(problem_, primitive_, i)));
      src_.push_back(produced_.back().clone());
    }
    if (sample.residual.defined()) residual_ = to_layout(sample.residual, result());
    packed_.push_back(algorithm_->pack ? algorithm_->pack(problem_, primitive_, sample.weights)
                                       : Packed());
  }

  // As inside a network: src was written just now, the weights were last used one inference ago,
  // the result and the workspace are allocated anew.
  double run_ns(const std::function<std::int64_t()>& now_ns) {
    for (std::size_t i = 0; i < src_.size(); ++i) src_[i].copy_(produced_[i]);
    const Packed& packed = packed_[turn_++ % packed_.size()];
    const std::int64_t start = now_ns();
    at::Tensor dst;
    if (!algorithm_->makes_dst) dst = empty_result(problem_, result());
    at::Tensor workspace;
    if (primitive_.workspace_bytes > 0) {
      workspace = at::empty({primitive_.workspace_bytes}, at::TensorOptions().dtype(at::kByte));
    }
    void* const scratch = workspace.defined() ? workspace.data_ptr() : nullptr;
    const at::Tensor result =
        algorithm_->run({problem_, primitive_, packed, src_, residual_, dst, scratch});
    return static_cast<double>(now_ns() - start);
  }

  [[nodiscard]] std::int64_t packed_bytes() const { return bytes_of(packed_[0]); }

  // From now on each run finds other weights, one of `copies` + 1.
  void rotate_weights(std::int64_t copies) {
    if (packed_bytes() == 0) return;
    for (std::int64_t i = 0; i < copies; ++i) {
      Packed copy;
      for (const at::Tensor& tensor : packed_[0]) {
        copy.push_back(tensor.defined() && tensor.has_storage() ? tensor.clone() : tensor);
      }
      packed_.push_back(std::move(copy));
    }
  }

 private:
  [[nodiscard]] Layout result() const { return result_layout(problem_, primitive_); }

  const Problem& problem_;
  Primitive primitive_;
  const Algorithm* algorithm_ = nullptr;
  std::vector<at::Tensor> produced_, src_;
  at::Tensor residual_;
  std::vector<Packed> packed_;
  std::size_t turn_ = 0;
};

// One failing task is out, the others go on.
template <typename Action>
void attempt(Samples& result, const Action& action) {
  if (!result.failure.empty()) return;
  try {
    action();
  } catch (const std::exception& error) {
    result.failure = error.what();
  }
}

std::vector<std::unique_ptr<Bench>> make_benches(const std::vector<Task>& tasks,
                                                 const Algorithms& algorithms,
                                                 const MeasureOptions& options,
                                                 std::vector<Samples>& results) {
  constexpr std::int64_t kMostCopies = 15;
  std::map<std::string, Sample> samples;
  std::vector<std::unique_ptr<Bench>> benches(tasks.size());
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    attempt(results[i], [&] {
      const auto [it, is_new] = samples.try_emplace(to_string(tasks[i].problem));
      if (is_new) it->second = make_sample(tasks[i].problem, options.seed);
      benches[i] = std::make_unique<Bench>(tasks[i], algorithms, it->second);
      bytes += benches[i]->packed_bytes();
    });
  }
  // The weights of the other tasks push a task's own out of the caches; copies do the rest.
  const std::int64_t copies =
      bytes == 0 ? 0 : std::clamp(options.cold_bytes / bytes, std::int64_t{0}, kMostCopies);
  for (const auto& bench : benches) {
    if (bench) bench->rotate_weights(copies);
  }
  return benches;
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
  const auto now_ns = options.now_ns ? options.now_ns : steady_now_ns;
  std::vector<Samples> results(tasks.size());
  const auto benches = make_benches(tasks, algorithms, options, results);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    attempt(results[i], [&] {
      for (int run = 0; run < options.warmup; ++run) benches[i]->run_ns(now_ns);
    });
  }
  constexpr int kLeastRounds = 3;
  const std::int64_t start = now_ns();
  for (int round = 0; round < options.rounds; ++round) {
    const double elapsed_s = static_cast<double>(now_ns() - start) * 1e-9;
    if (round >= kLeastRounds && elapsed_s > options.budget_s) break;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      attempt(results[i], [&] { results[i].ns.push_back(benches[i]->run_ns(now_ns)); });
    }
  }
  return results;
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/measure.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <exception>

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
  Bench(const Problem& problem, Primitive primitive, const Algorithms& algorithms,
        const Sample& sample, std::int64_t cold_bytes)
      : problem_(problem), primitive_(std::move(primitive)) {
    algorithm_ = find_algorithm(algorithms, primitive_.name);
    TORCHALGO_CHECK(algorithm_ != nullptr, "measure: no algorithm has the name '{}'",
                    primitive_.name);
    for (const at::Tensor& tensor : sample.src) {
      produced_.push_back(to_layout(tensor, primitive_.src));
      src_.push_back(produced_.back().clone());
    }
    if (sample.residual.defined()) residual_ = to_layout(sample.residual, primitive_.dst);
    packed_.push_back(algorithm_->pack ? algorithm_->pack(problem_, primitive_, sample.weights)
                                       : Packed());
    rotate_weights(cold_bytes);
  }

  // As inside a network: src was written just now, the weights were last used one inference ago,
  // the result and the workspace are allocated anew.
  double run_ns(const std::function<std::int64_t()>& now_ns) {
    for (std::size_t i = 0; i < src_.size(); ++i) src_[i].copy_(produced_[i]);
    const Packed& packed = packed_[turn_++ % packed_.size()];
    const std::int64_t start = now_ns();
    at::Tensor dst;
    if (!algorithm_->makes_dst) dst = empty_result(problem_, primitive_.dst);
    at::Tensor workspace;
    if (primitive_.workspace_bytes > 0) {
      workspace = at::empty({primitive_.workspace_bytes}, at::TensorOptions().dtype(at::kByte));
    }
    void* const scratch = workspace.defined() ? workspace.data_ptr() : nullptr;
    const at::Tensor result =
        algorithm_->run({problem_, primitive_, packed, src_, residual_, dst, scratch});
    return static_cast<double>(now_ns() - start);
  }

 private:
  void rotate_weights(std::int64_t cold_bytes) {
    constexpr std::int64_t kMostCopies = 16;
    const std::int64_t bytes = bytes_of(packed_[0]);
    if (bytes == 0) return;
    const std::int64_t copies = std::clamp(cold_bytes / bytes, std::int64_t{1}, kMostCopies);
    for (std::int64_t i = 0; i < copies; ++i) {
      Packed copy;
      for (const at::Tensor& tensor : packed_[0]) {
        copy.push_back(tensor.defined() && tensor.has_storage() ? tensor.clone() : tensor);
      }
      packed_.push_back(std::move(copy));
    }
  }

  const Problem& problem_;
  Primitive primitive_;
  const Algorithm* algorithm_ = nullptr;
  std::vector<at::Tensor> produced_, src_;
  at::Tensor residual_;
  std::vector<Packed> packed_;
  std::size_t turn_ = 0;
};

}  // namespace

Samples measure(const Problem& problem, const Primitive& primitive, const Algorithms& algorithms,
                const MeasureOptions& options) {
  return measure_interleaved(problem, {primitive}, algorithms, options)[0];
}

std::vector<Samples> measure_interleaved(const Problem& problem,
                                         const std::vector<Primitive>& primitives,
                                         const Algorithms& algorithms,
                                         const MeasureOptions& options) {
  const at::NoGradGuard no_grad;
  const auto now_ns = options.now_ns ? options.now_ns : steady_now_ns;
  const Sample sample = make_sample(problem, options.seed);
  std::vector<Samples> results(primitives.size());
  std::vector<std::unique_ptr<Bench>> benches(primitives.size());
  const auto attempt = [&](std::size_t i, const auto& action) {
    if (!results[i].failure.empty()) return;
    try {
      action();
    } catch (const std::exception& error) {  // of one candidate: it is out, the others go on
      results[i].failure = error.what();
    }
  };
  for (std::size_t i = 0; i < primitives.size(); ++i) {
    attempt(i, [&] {
      benches[i] =
          std::make_unique<Bench>(problem, primitives[i], algorithms, sample, options.cold_bytes);
      for (int run = 0; run < options.warmup; ++run) benches[i]->run_ns(now_ns);
    });
  }
  constexpr int kLeastRounds = 3;
  const std::int64_t start = now_ns();
  for (int round = 0; round < options.rounds; ++round) {
    const double elapsed_s = static_cast<double>(now_ns() - start) * 1e-9;
    if (round >= kLeastRounds && elapsed_s > options.budget_s) break;
    for (std::size_t i = 0; i < primitives.size(); ++i) {
      attempt(i, [&] { results[i].ns.push_back(benches[i]->run_ns(now_ns)); });
    }
  }
  return results;
}

}  // namespace torchalgo

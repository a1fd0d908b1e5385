// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>

#include "profiler/bench.h"
#include "profiler/flush.h"

namespace torchalgo {
namespace {

void flush(const Packed& packed) {
  for (const at::Tensor& tensor : packed) {
    if (tensor.defined() && tensor.has_storage()) flush_caches(tensor.data_ptr(), tensor.nbytes());
  }
}

class WarmBench : public Bench {
 public:
  WarmBench(const Task& task, const Algorithm& algorithm, const Sample& sample)
      : problem_(task.problem), primitive_(task.primitive), algorithm_(algorithm) {
    for (std::size_t i = 0; i < sample.src.size(); ++i) {
      produced_.push_back(to_layout(sample.src[i], input_layout(problem_, primitive_, i)));
      src_.push_back(produced_.back().clone());
    }
    if (sample.residual.defined()) {
      produced_residual_ = to_layout(sample.residual, result());
      residual_ = produced_residual_.clone();
    }
    packed_.push_back(algorithm_.pack ? algorithm_.pack(problem_, primitive_, sample.weights)
                                      : Packed());
    work_.refresh = [this] {
      // Else it would be as cold as what other tasks ran meanwhile leaves it: that is chance.
      if (residual_.defined()) residual_.copy_(produced_residual_);
      for (std::size_t i = 0; i < src_.size(); ++i) src_[i].copy_(produced_[i]);
      if (is_flushed_) flush(packed_[turn_ % packed_.size()]);
    };
    work_.run = [this] { run(); };
  }

  const Runnable& work() const override { return work_; }
  std::int64_t packed_bytes() const override { return packed_bytes_of(packed_[0]); }
  void rotate_weights(std::int64_t copies) override {
    if (packed_bytes() == 0) return;
    for (std::int64_t i = 0; i < copies; ++i) packed_.push_back(copy_packed(packed_[0]));
  }
  void flush_weights() override { is_flushed_ = true; }

 private:
  [[nodiscard]] Layout result() const { return result_layout(problem_, primitive_); }

  void run() {
    const Packed& packed = packed_[turn_++ % packed_.size()];
    const at::Device device = src_[0].device();
    at::Tensor dst;
    if (!algorithm_.makes_dst) dst = empty_result(problem_, result(), device);
    at::Tensor workspace;
    if (primitive_.workspace_bytes > 0) {
      workspace = at::empty({primitive_.workspace_bytes},
                            at::TensorOptions().dtype(at::kByte).device(device));
    }
    void* const scratch = workspace.defined() ? workspace.data_ptr() : nullptr;
    const at::Tensor result =
        algorithm_.run({problem_, primitive_, packed, src_, residual_, dst, scratch});
  }

  const Problem problem_;
  const Primitive primitive_;
  const Algorithm& algorithm_;
  std::vector<at::Tensor> produced_, src_;
  at::Tensor produced_residual_, residual_;
  std::vector<Packed> packed_;
  std::size_t turn_ = 0;
  bool is_flushed_ = false;
  Runnable work_;
};

}  // namespace

std::int64_t packed_bytes_of(const Packed& packed) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : packed) {
    if (tensor.defined() && tensor.has_storage())
      bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

Packed copy_packed(const Packed& packed) {
  Packed copy;
  for (const at::Tensor& tensor : packed) {
    copy.push_back(tensor.defined() && tensor.has_storage() ? tensor.clone() : tensor);
  }
  return copy;
}

std::unique_ptr<Bench> make_warm_bench(const Task& task, const Algorithm& algorithm,
                                       const Sample& sample) {
  return std::make_unique<WarmBench>(task, algorithm, sample);
}

}  // namespace torchalgo

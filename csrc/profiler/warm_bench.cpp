// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>

#include <utility>

#include "profiler/bench.h"
#include "provider/cpu_device.h"
#include "provider/memory.h"
#include "provider/packing.h"

namespace torchalgo {
namespace {

bool is_hidden(const at::Tensor& tensor) { return !tensor.has_storage(); }

// Returns the bytes of other data that evict the weights from the caches where they must not be.
std::int64_t swept_bytes(const Packed& packed, WeightsIn where) {
  if (packed.empty() || where == WeightsIn::kL2) return 0;
  if (where == WeightsIn::kPastL2 || where == WeightsIn::kChanged)
    return 2 * at::get_num_threads() * cpu_device().l2_bytes;
  // Weights that a library hides have no address to flush.
  bool is_any_hidden = false;
  for_each_tensor(packed, [&](const at::Tensor& tensor) {
    is_any_hidden |= tensor.defined() && is_hidden(tensor);
  });
  return is_any_hidden || !can_flush_caches() ? 2 * kLargeCacheBytes : 0;
}

void flush(const Packed& packed) {
  for_each_tensor(packed, [](const at::Tensor& tensor) {
    if (tensor.defined() && !is_hidden(tensor)) flush_caches(tensor.data_ptr(), tensor.nbytes());
  });
}

class WarmBench : public Bench {
 public:
  WarmBench(Kernel kernel, const Sample& sample, WeightsIn weights) : kernel_(std::move(kernel)) {
    for (std::size_t i = 0; i < sample.src.size(); ++i) {
      produced_.push_back(
          to_layout(sample.src[i], input_layout(kernel_.problem, kernel_.primitive, i)));
      src_.push_back(copy_reused(produced_.back()));
    }
    if (sample.residual.defined()) {
      produced_residual_ = to_layout(sample.residual, result());
      residual_ = copy_reused(produced_residual_);
    }
    if (weights == WeightsIn::kChanged) {
      changed_ = sample.weights;
    } else {
      packed_ = pack_to_weight_pages(kernel_, sample.weights);
    }
    const std::int64_t swept = swept_bytes(changed_.empty() ? packed_ : changed_, weights);
    const bool is_flushed = weights == WeightsIn::kNoCache;
    work_.refresh = [this, swept, is_flushed] {
      if (swept > 0) sweep_caches(swept);
      if (is_flushed) flush(packed_);
      // Without these copies, it would depend on the tasks that ran in between whether inputs are
      // in the caches.
      if (residual_.defined()) residual_.copy_(produced_residual_);
      for (std::size_t i = 0; i < src_.size(); ++i) src_[i].copy_(produced_[i]);
    };
    work_.run = [this] { run(); };
  }

  const Runnable& work() const override { return work_; }

 private:
  [[nodiscard]] Layout result() const { return result_layout(kernel_.problem, kernel_.primitive); }

  void run() {
    const at::Device device = src_[0].device();
    at::Tensor dst;
    if (!kernel_.makes_dst) dst = empty_result(kernel_.problem, result(), device);
    at::Tensor workspace;
    const std::int64_t bytes = kernel_.primitive.workspace_bytes;
    if (bytes > 0) workspace = empty_bytes(bytes, device);
    void* const scratch = workspace.defined() ? workspace.data_ptr() : nullptr;
    if (changed_.empty()) {
      const at::Tensor result = kernel_.run({packed_, src_, residual_, dst, scratch});
      return;
    }
    const Packed packed = pack(kernel_, changed_);
    const at::Tensor result = kernel_.run({packed, src_, residual_, dst, scratch});
  }

  const Kernel kernel_;
  std::vector<at::Tensor> produced_, src_;
  at::Tensor produced_residual_, residual_;
  Packed packed_;
  Weights changed_;  // packed in each run; empty if packed_ is used
  Runnable work_;
};

}  // namespace

std::unique_ptr<Bench> make_warm_bench(Kernel kernel, const Sample& sample, WeightsIn weights) {
  return std::make_unique<WarmBench>(std::move(kernel), sample, weights);
}

}  // namespace torchalgo

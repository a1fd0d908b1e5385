// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>

#include "profiler/bench.h"
#include "provider/memory.h"

namespace torchalgo {
namespace {

constexpr std::int64_t kMostSlots = 20;

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

// Tensors whose memory a library hides count as 0.
std::int64_t bytes_of_all(const Packed& packed) {
  std::int64_t bytes = 0;
  for_each_tensor(packed, [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) bytes += bytes_of(tensor);
  });
  return bytes;
}

// Copies the tensors, except those whose memory a library hides.
Packed copy_packed(Packed packed) {
  for_each_tensor(packed, [](at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) tensor = tensor.clone();
  });
  return packed;
}

class ColdBench : public Bench {
 public:
  ColdBench(Kernel kernel, const Sample& sample, WeightsIn weights, std::int64_t cache_bytes,
            SharedTensors& shared)
      : kernel_(std::move(kernel)),
        packs_in_runs_(weights == WeightsIn::kChanged),
        device_((sample.src.empty() ? sample.residual : sample.src[0]).device()) {
    weights_.push_back(packs_in_runs_ ? Packed(sample.weights) : pack(kernel_, sample.weights));
    std::int64_t bytes = bytes_of_all(weights_[0]) + bytes_of(sample.residual);
    for (const at::Tensor& src : sample.src) bytes += bytes_of(src);
    const auto slots = static_cast<std::size_t>(std::clamp(
        2 * cache_bytes / std::max<std::int64_t>(bytes, 1) + 1, std::int64_t{2}, kMostSlots));
    make_slots(sample, slots, shared);
    workspace_ = shared.workspace(kernel_.primitive.workspace_bytes, device_);
    work_.run = [this] { run(); };
  }

  const Runnable& work() const override { return work_; }

 private:
  struct Slot {
    std::vector<at::Tensor> src;
    at::Tensor residual, dst;
    Packed packed;  // of the last run; only if weights are packed in runs
  };

  void make_slots(const Sample& sample, std::size_t count, SharedTensors& shared) {
    slots_.resize(count);
    const std::string problem = to_string(kernel_.problem);
    for (std::size_t i = 0; i < sample.src.size(); ++i) {
      const Layout layout = input_layout(kernel_.problem, kernel_.primitive, i);
      const auto tensors =
          shared.get(fmt::format("{} input {} {}", problem, i, to_string(layout)), count,
                     [&] { return to_layout(sample.src[i], layout).clone(); });
      for (std::size_t slot = 0; slot < count; ++slot) slots_[slot].src.push_back(tensors[slot]);
    }
    const Layout layout = result_layout(kernel_.problem, kernel_.primitive);
    if (sample.residual.defined()) {
      const auto tensors =
          shared.get(fmt::format("{} residual {}", problem, to_string(layout)), count,
                     [&] { return to_layout(sample.residual, layout).clone(); });
      for (std::size_t slot = 0; slot < count; ++slot) slots_[slot].residual = tensors[slot];
    }
    if (!kernel_.makes_dst) {
      const auto tensors =
          shared.get(fmt::format("{} result {}", problem, to_string(layout)), count,
                     [&] { return empty_result(kernel_.problem, layout, device_); });
      for (std::size_t slot = 0; slot < count; ++slot) slots_[slot].dst = tensors[slot];
    }
    for (std::size_t slot = 1; slot < count; ++slot) weights_.push_back(copy_packed(weights_[0]));
  }

  void run() {
    const std::size_t turn = turn_++ % slots_.size();
    Slot& slot = slots_[turn];
    void* const scratch = workspace_.defined() ? workspace_.data_ptr() : nullptr;
    // Packed weights and a library's result are kept until the slot's next turn, because a CUDA
    // graph that writes them is launched again.
    if (packs_in_runs_) slot.packed = pack(kernel_, weights_[turn]);
    slot.dst = kernel_.run({packs_in_runs_ ? slot.packed : weights_[turn], slot.src, slot.residual,
                            kernel_.makes_dst ? at::Tensor() : slot.dst, scratch});
  }

  const Kernel kernel_;
  const bool packs_in_runs_;
  const at::Device device_;
  std::vector<Packed> weights_;  // per slot: packed, unless `packs_in_runs_`
  std::vector<Slot> slots_;
  at::Tensor workspace_;
  std::size_t turn_ = 0;
  Runnable work_;
};

}  // namespace

std::vector<at::Tensor> SharedTensors::get(const std::string& key, std::size_t count,
                                           const std::function<at::Tensor()>& make) {
  std::vector<at::Tensor>& tensors = tensors_[key];
  while (tensors.size() < count) tensors.push_back(make());
  return tensors;
}

at::Tensor SharedTensors::workspace(std::int64_t bytes, at::Device device) {
  if (bytes == 0) return {};
  if (!workspace_.defined() || workspace_.numel() < bytes) {
    workspace_ = empty_bytes(bytes, device);
  }
  return workspace_;
}

std::unique_ptr<Bench> make_cold_bench(Kernel kernel, const Sample& sample, WeightsIn weights,
                                       std::int64_t cache_bytes, SharedTensors& shared) {
  return std::make_unique<ColdBench>(std::move(kernel), sample, weights, cache_bytes, shared);
}

}  // namespace torchalgo

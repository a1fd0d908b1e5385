// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/equal.h>
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

bool has_form_of(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

class ColdBench : public Bench {
 public:
  ColdBench(Kernel kernel, const Sample& sample, WeightsIn weights, std::int64_t cache_bytes,
            SharedTensors& shared)
      : kernel_(std::move(kernel)),
        packs_in_runs_(weights == WeightsIn::kChanged),
        device_((sample.src.empty() ? sample.residual : sample.src[0]).device()) {
    const Packed weights_once =
        packs_in_runs_ ? Packed(sample.weights) : pack(kernel_, sample.weights);
    std::int64_t bytes = bytes_of_all(weights_once) + bytes_of(sample.residual);
    for (const at::Tensor& src : sample.src) bytes += bytes_of(src);
    const auto slots = static_cast<std::size_t>(std::clamp(
        2 * cache_bytes / std::max<std::int64_t>(bytes, 1) + 1, std::int64_t{2}, kMostSlots));
    make_slots(sample, weights_once, slots, shared);
    workspace_ = shared.workspace(kernel_.primitive.workspace_bytes, device_);
    work_.run = [this] { run(); };
  }

  const Runnable& work() const override { return work_; }

 private:
  struct Slot {
    Packed weights;  // packed, unless `packs_in_runs_`
    std::vector<at::Tensor> src = {};
    at::Tensor residual = {}, dst = {};
  };

  void make_slots(const Sample& sample, const Packed& weights, std::size_t count,
                  SharedTensors& shared) {
    slots_.resize(count, {.weights = weights});
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto kernels = shared.copies_of(weights[i].weights, count);
      const auto biases = shared.copies_of(weights[i].bias, count);
      for (std::size_t slot = 0; slot < count; ++slot) {
        slots_[slot].weights[i] = {kernels[slot], biases[slot]};
      }
    }
    for (std::size_t i = 0; i < sample.src.size(); ++i) {
      const Layout layout = input_layout(kernel_.problem, kernel_.primitive, i);
      const auto tensors = shared.copies_of(to_layout(sample.src[i], layout), count);
      for (std::size_t slot = 0; slot < count; ++slot) slots_[slot].src.push_back(tensors[slot]);
    }
    const Layout layout = result_layout(kernel_.problem, kernel_.primitive);
    if (sample.residual.defined()) {
      const auto tensors = shared.copies_of(to_layout(sample.residual, layout), count);
      for (std::size_t slot = 0; slot < count; ++slot) slots_[slot].residual = tensors[slot];
    }
    if (!kernel_.makes_dst) {
      const auto tensors = shared.results(kernel_.problem, layout, device_, count);
      for (std::size_t slot = 0; slot < count; ++slot) slots_[slot].dst = tensors[slot];
    }
  }

  void run() {
    Slot& slot = slots_[turn_++ % slots_.size()];
    void* const scratch = workspace_.defined() ? workspace_.data_ptr() : nullptr;
    Packed changed;
    if (packs_in_runs_) changed = pack(kernel_, slot.weights);
    const Packed& packed = packs_in_runs_ ? changed : slot.weights;
    // A library's result is kept until the slot's next turn, so that results take turns too.
    slot.dst = kernel_.run(
        {packed, slot.src, slot.residual, kernel_.makes_dst ? at::Tensor() : slot.dst, scratch});
  }

  const Kernel kernel_;
  const bool packs_in_runs_;
  const at::Device device_;
  std::vector<Slot> slots_;
  at::Tensor workspace_;
  std::size_t turn_ = 0;
  Runnable work_;
};

}  // namespace

std::vector<at::Tensor> SharedTensors::copies_of(const at::Tensor& tensor, std::size_t count) {
  if (!tensor.defined() || !tensor.has_storage()) return std::vector(count, tensor);
  const auto known = std::find_if(copies_.begin(), copies_.end(), [&](const auto& copies) {
    return has_form_of(copies[0], tensor) && at::equal(copies[0], tensor);
  });
  std::vector<at::Tensor>& copies =
      known != copies_.end() ? *known : copies_.emplace_back(1, tensor.clone());
  while (copies.size() < count) copies.push_back(copies[0].clone());
  return copies;
}

std::vector<at::Tensor> SharedTensors::results(const Problem& problem, Layout layout,
                                               at::Device device, std::size_t count) {
  std::vector<at::Tensor>& tensors =
      results_[fmt::format("{} {}", to_string(problem), to_string(layout))];
  while (tensors.size() < count) tensors.push_back(empty_result(problem, layout, device));
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

// SPDX-License-Identifier: BSD-3-Clause
#include "runner/weight_watch.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/error.h"

namespace torchalgo {
namespace {

// Tensors that were made in inference mode do not count their changes.
std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

}  // namespace

WeightWatch::WeightWatch(const std::vector<std::reference_wrapper<const at::Tensor>>& weights,
                         std::vector<std::string> names) {
  TORCHALGO_ASSERT(weights.size() == names.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    Weight& weight = weights_.emplace_back();
    const at::Tensor& tensor = weights[i];
    weight.tensor = &tensor;
    weight.name = std::move(names[i]);
    if (!is_watched(tensor)) continue;
    weight.data = tensor.const_data_ptr();
    weight.version = version_of(tensor);
    const std::size_t bytes = tensor.element_size();
    if (!tensor.is_cpu() || tensor.numel() == 0 || bytes > weight.bits.size()) continue;
    std::int64_t middle = 0;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
      middle += tensor.size(dim) / 2 * tensor.stride(dim);
    weight.element = static_cast<const std::byte*>(weight.data) + middle * bytes;
    weight.element_bytes = bytes;
    std::memcpy(weight.bits.data(), weight.element, bytes);
  }
}

bool WeightWatch::is_watched(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage();
}

bool WeightWatch::is_changed(const Weight& weight) {
  const at::Tensor& tensor = *weight.tensor;
  if (!is_watched(tensor)) return false;
  // The address is compared first. If it has changed, the element may be in freed memory.
  if (tensor.const_data_ptr() != weight.data || version_of(tensor) != weight.version) return true;
  return weight.element != nullptr &&
         std::memcmp(weight.element, weight.bits.data(), weight.element_bytes) != 0;
}

void WeightWatch::prefetch() const {
  constexpr std::size_t kLine = 64;
  for (const Weight& weight : weights_) {
    const auto* const tensor =
        reinterpret_cast<const std::byte*>(weight.tensor->unsafeGetTensorImpl());
    for (std::size_t byte = 0; byte < sizeof(c10::TensorImpl); byte += kLine)
      __builtin_prefetch(tensor + byte);
  }
  for (const Weight& weight : weights_) {
    if (!is_watched(*weight.tensor)) continue;
    __builtin_prefetch(
        weight.tensor->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    // Prefetching an address that is not mapped any more is harmless.
    __builtin_prefetch(weight.element);
  }
}

std::optional<ModelChange> WeightWatch::first_change() const {
  prefetch();
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (is_changed(weights_[i])) return change_of(i);
  }
  return std::nullopt;
}

ModelChange WeightWatch::change_of(std::size_t i) const {
  return {fmt::format("weight '{}' of the original model was changed after optimize",
                      weights_[i].name)};
}

}  // namespace torchalgo

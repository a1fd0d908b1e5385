// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torchalgo {

/// A change of a model since its plans were packed.
struct ModelChange {
  std::string text;       // such as "weight 'fc.bias' of the original model was changed after ..."
  bool is_weight = true;  // false: the model computes something else now
};

/// The weights of a model as they were when they were packed. It detects later changes: other
/// memory, a higher version (which ops in place raise), or other bits of the middle element. The
/// last one reveals most writes through `.data`, which do not raise the version.
class WeightWatch {
 public:
  /// Records the present state. Sparse weights are never seen as changed. Tensors that were made in
  /// inference mode have no version, so only their address and middle element are compared.
  ///
  /// @param weights  are read again in each check, so they must outlive the watch. It holds no
  ///                 copies: torch.utils.swap_tensors refuses a tensor that C++ holds.
  WeightWatch(const std::vector<std::reference_wrapper<const at::Tensor>>& weights,
              std::vector<std::string> names);
  virtual ~WeightWatch() = default;
  WeightWatch(const WeightWatch&) = delete;
  WeightWatch& operator=(const WeightWatch&) = delete;

  /// Returns the first change; nullopt if there is none. The kernels have evicted all weights from
  /// the caches: this takes 20 us for 16 weights and 50 us for 314.
  [[nodiscard]] virtual std::optional<ModelChange> first_change() const;

 protected:
  /// Returns the change of weight number `i`.
  [[nodiscard]] ModelChange change_of(std::size_t i) const;

 private:
  struct Weight {
    const at::Tensor* tensor = nullptr;
    std::string name;
    const void* data = nullptr;
    std::uint32_t version = 0;
    // The middle element. Null if it is not in the memory of the CPU.
    const std::byte* element = nullptr;
    std::size_t element_bytes = 0;
    std::array<std::byte, 16> bits{};
  };

  // Loads the weights into the caches, all at once.
  void prefetch() const;
  [[nodiscard]] static bool is_watched(const at::Tensor& tensor);
  [[nodiscard]] static bool is_changed(const Weight& weight);

  std::vector<Weight> weights_;
};

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "provider/cuda_library.h"
#include "provider/kernel.h"

namespace torchalgo::cuda_algo {

using LayoutPair = std::pair<Layout, Layout>;  // of the inputs and the result

/// The problems that one function of the library computes.
struct KernelFamily {
  std::string_view name;                              // of the algorithm
  std::function<std::string(const Problem&)> refuse;  // why it does not take the problem; or ""
  std::function<std::vector<LayoutPair>(const Problem&)> layouts;
  std::function<Kernel(const Problem&, const Primitive&, const CudaLibrary&)> prepare;
};

// One file each; rows.cpp has concat and slice.
[[nodiscard]] KernelFamily transform();
[[nodiscard]] KernelFamily pool();
[[nodiscard]] KernelFamily pointwise();
[[nodiscard]] KernelFamily concat();
[[nodiscard]] KernelFamily slice();
[[nodiscard]] KernelFamily depthwise();

inline const std::vector<LayoutPair> kNhwcOnly = {{Layout::kNhwc, Layout::kNhwc}};
inline const std::vector<LayoutPair> kBothLayouts = {{Layout::kNchw, Layout::kNchw},
                                                     {Layout::kNhwc, Layout::kNhwc}};

/// Returns the activation in the library's form; none for nullopt.
[[nodiscard]] inline cuda::Activation activation_of(const std::optional<PostOp>& op) {
  if (!op) return {};
  return {static_cast<int>(op->kind) - static_cast<int>(PostOp::kRelu),
          {static_cast<float>(op->numbers[0]), static_cast<float>(op->numbers[1])}};
}

}  // namespace torchalgo::cuda_algo

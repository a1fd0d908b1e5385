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
[[nodiscard]] KernelFamily layer_norm();

inline const std::vector<LayoutPair> kNhwcOnly = {{Layout::kNhwc, Layout::kNhwc}};
inline const std::vector<LayoutPair> kBothLayouts = {{Layout::kNchw, Layout::kNchw},
                                                     {Layout::kNhwc, Layout::kNhwc}};

/// Returns how a kernel of the library reads elements of this type; nullopt if it cannot.
[[nodiscard]] std::optional<cuda::ElementType> element_type_of(DType dtype);

/// Returns the activation in the library's form; none for nullopt.
[[nodiscard]] cuda::Activation activation_of(const std::optional<PostOp>& op);

/// Returns the address of the tensor's elements; null if it is undefined.
[[nodiscard]] const void* data_of(const at::Tensor& tensor);

/// Returns a kernel that makes the GPU of the result the current one and calls `launch`. This
/// enqueues on `stream` and returns a cudaError_t. The caller adds what packs weights.
[[nodiscard]] Kernel kernel_of(const Problem& problem, const Primitive& primitive,
                               std::function<int(const KernelArgs& args, void* stream)> launch);

/// Returns `kernel` with the scale and the shift of each channel as its weights.
[[nodiscard]] Kernel with_scale_and_shift(Kernel kernel);

/// Returns Pool or Depthwise with the type, the sizes, and the window of `problem`, which is a
/// PoolProblem or a ConvProblem of images.
template <typename Args, typename P>
[[nodiscard]] Args with_window(const P& problem) {
  const auto number = [](std::int64_t size) { return static_cast<int>(size); };
  const std::vector<std::int64_t> dst = result_sizes(problem);
  Args args;
  args.type = *element_type_of(problem.dtype);
  args.n = number(problem.n), args.c = number(problem.c);
  args.h = number(problem.h), args.w = number(problem.w);
  args.p = number(dst[2]), args.q = number(dst[3]);
  args.r = number(problem.r), args.s = number(problem.s);
  args.stride_h = number(problem.stride_h), args.stride_w = number(problem.stride_w);
  args.pad_h = number(problem.pad_h), args.pad_w = number(problem.pad_w);
  args.dilation_h = number(problem.dilation_h), args.dilation_w = number(problem.dilation_w);
  return args;
}

}  // namespace torchalgo::cuda_algo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "provider/kernel.h"
#include "provider/tensor_shape.h"

namespace torchalgo {

/// The form of a kernel's result in memory.
struct ResultForm {
  TensorShape shape;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

[[nodiscard]] ResultForm result_form(const Problem& problem, Layout layout, at::Device device);

/// Runs a kernel and returns its result. Every planned step is run here.
/// @param src, residual  as in KernelArgs.
/// @param dst  the memory of the result, of `form`; undefined: new memory. It is not used if the
///   kernel has `makes_dst`.
[[nodiscard]] at::Tensor run_prepared(const Kernel& kernel, const Packed& packed,
                                      std::span<const at::Tensor> src, const at::Tensor& residual,
                                      const ResultForm& form, at::Tensor dst = {});

}  // namespace torchalgo

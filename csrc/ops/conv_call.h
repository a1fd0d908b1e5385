// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo {

/// One of the three computations of a convolution. Its tensors are src [n, c, ...], weights [k, c /
/// groups, ...] and dst [n, k, ...], or their gradients, with 1 to 3 image dimensions. The result
/// is undefined and has `result_sizes`. It is dst for kForward, src for kBackwardData, weights for
/// kBackwardFilter.
struct ConvCall {
  Direction direction = Direction::kForward;
  at::Tensor src, weights, dst;
  at::Tensor bias;  // added to the result, or undefined
  at::DimVector result_sizes;
  at::MemoryFormat result_format = at::MemoryFormat::Contiguous;
  at::IntArrayRef stride, padding, dilation;  // one number per image dimension, or one for all
  std::int64_t groups = 1;
};

/// Returns the problem that `call` computes, with epilogue kBias if it has a bias. A 1-D
/// convolution is 2-D with h = r = 1. Float tensors on a GPU are tf32 if torch allows TF32. Returns
/// nullopt for calls that are left to PyTorch: other dtypes or devices, sparse tensors, no
/// elements, or sizes that do not fit. PyTorch runs such a call or reports the error.
[[nodiscard]] std::optional<ConvProblem> conv_problem(const ConvCall& call);

/// Checks that the bias has the input's type, as torch's convolutions do. Transposed convolutions
/// are left to PyTorch, which casts a bias to f64 and refuses other types.
/// @throws Error  if the types differ.
void check_bias_type(const at::Tensor& input, const std::optional<at::Tensor>& bias,
                     bool transposed);

/// Returns the memory format that torch gives to the results of a convolution, forward and
/// backward: channels_last if an operand is channels_last, contiguous for a 1-D convolution.
[[nodiscard]] at::MemoryFormat conv_memory_format(const at::Tensor& input,
                                                  const at::Tensor& weight);

/// Returns kNhwc for a channels_last tensor, else kNchw.
[[nodiscard]] Layout strided_layout(const at::Tensor& tensor);

}  // namespace torchalgo

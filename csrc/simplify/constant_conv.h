// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "torchscript/graph_view.h"

namespace torchalgo {

/// A convolution, transposed or not, whose weights, bias and groups are constants of the graph.
struct ConstantConv {
  script::Node node;
  at::Tensor weight;  // [k, c / groups, ...]; if transposed, [c, k / groups, ...]
  at::Tensor bias;    // [k]; undefined if there is none
  std::int64_t groups = 1;
  bool is_transposed = false;
};

/// Returns the convolution that `node` is, or nullopt if it is none or not constant.
[[nodiscard]] std::optional<ConstantConv> read_constant_conv(script::Node node);

/// Returns what read_constant_conv() does, or a linear layer with constant weights [k, c] as the
/// convolution that it is for a matrix [n, c].
[[nodiscard]] std::optional<ConstantConv> read_constant_layer(script::Node node);

/// Returns the number of channels of the result.
[[nodiscard]] std::int64_t result_channels(const ConstantConv& conv);

/// Returns a copy in double precision on the CPU, in which weights are combined.
[[nodiscard]] at::Tensor as_f64(const at::Tensor& tensor);

/// Gives the layer other weights and another bias, in the type of its weights. A layer
/// without a bias stays so if the new one is undefined or 0.
void replace_weights(const ConstantConv& conv, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/constant_conv.h"

#include <string_view>

#include "torchscript/constants.h"

namespace torchalgo {

using script::Node;

std::optional<ConstantConv> read_constant_conv(Node node) {
  if (!is_convolution(node) || node.schema() == nullptr) return std::nullopt;
  ConstantConv conv;
  conv.node = node;
  const std::optional<at::Tensor> weight = constant_tensor(node.argument("weight"));
  const std::optional<at::Tensor> bias = constant_tensor(node.argument("bias"));
  const auto groups = constant_ints(node.argument("groups"));
  if (!weight || !groups || groups->size() != 1) return std::nullopt;
  if (!bias && !is_none(node.argument("bias"))) return std::nullopt;
  conv.weight = *weight;
  if (bias) conv.bias = *bias;
  conv.groups = groups->at(0);
  if (node.has_argument("transposed")) {
    const std::optional<bool> is_transposed = constant_bool(node.argument("transposed"));
    if (!is_transposed) return std::nullopt;
    conv.is_transposed = *is_transposed;
  } else {
    const std::string_view name = node.name();
    conv.is_transposed = name.starts_with("conv_transpose");
  }
  return conv;
}

std::optional<ConstantConv> read_constant_layer(Node node) {
  if (!is_constant_linear(node)) return read_constant_conv(node);
  const at::Tensor bias = constant_tensor(node.input(2)).value_or(at::Tensor());
  return ConstantConv{node, *constant_tensor(node.input(1)), bias};
}

std::int64_t result_channels(const ConstantConv& conv) {
  return conv.is_transposed ? conv.weight.size(1) * conv.groups : conv.weight.size(0);
}

at::Tensor as_f64(const at::Tensor& tensor) { return tensor.to(at::kCPU, at::kDouble); }

void replace_weights(const ConstantConv& conv, const at::Tensor& weight, const at::Tensor& bias) {
  const script::Builder at(conv.node);
  const auto as_own_type = [&](const at::Tensor& tensor) {
    return tensor.to(conv.weight.scalar_type()).contiguous();
  };
  // Every convolution of ATen has the arguments (input, weight, bias, ...), and so has linear.
  conv.node.replace_input(1, at.weight(as_own_type(weight), conv.node.input(1)));
  const bool has_bias = conv.bias.defined() || (bias.defined() && bias.any().item<bool>());
  conv.node.replace_input(
      2, at.constant(has_bias && bias.defined() ? as_own_type(bias) : c10::IValue()));
}

}  // namespace torchalgo

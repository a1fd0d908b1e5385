// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/constant_conv.h"

#include <torch/csrc/jit/ir/constants.h>

#include <string_view>

#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Node;
using torch::jit::Value;

std::optional<ConstantConv> read_constant_conv(const Node* node) {
  if (!is_convolution(node) || node->maybeSchema() == nullptr) return std::nullopt;
  ConstantConv conv;
  conv.node = const_cast<Node*>(node);
  const std::optional<at::Tensor> weight = constant_tensor(node->namedInput("weight"));
  const std::optional<at::Tensor> bias = constant_tensor(node->namedInput("bias"));
  const auto groups = constant_ints(node->namedInput("groups"));
  if (!weight || !groups || groups->size() != 1) return std::nullopt;
  if (!bias && !is_none(node->namedInput("bias"))) return std::nullopt;
  conv.weight = *weight;
  if (bias) conv.bias = *bias;
  conv.groups = groups->at(0);
  if (node->hasNamedInput("transposed")) {
    const std::optional<bool> is_transposed = constant_bool(node->namedInput("transposed"));
    if (!is_transposed) return std::nullopt;
    conv.is_transposed = *is_transposed;
  } else {
    const std::string_view name = node->kind().toUnqualString();
    conv.is_transposed = name.starts_with("conv_transpose");
  }
  return conv;
}

std::int64_t result_channels(const ConstantConv& conv) {
  return conv.is_transposed ? conv.weight.size(1) * conv.groups : conv.weight.size(0);
}

at::Tensor as_f64(const at::Tensor& tensor) { return tensor.to(at::kCPU, at::kDouble); }

void replace_weights(const ConstantConv& conv, const at::Tensor& weight, const at::Tensor& bias) {
  torch::jit::Graph& graph = *conv.node->owningGraph();
  const torch::jit::WithInsertPoint at(conv.node);
  const auto constant = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return graph.insertConstant(c10::IValue());
    return graph.insertConstant(tensor.to(conv.weight.scalar_type()).contiguous());
  };
  // Every convolution of ATen has the arguments (input, weight, bias, ...).
  const torch::jit::Value* const old = conv.node->input(1);
  torch::jit::Value* const made = constant(weight);
  if (old->hasDebugName()) made->setDebugName(old->debugName());  // it names the layer
  conv.node->replaceInput(1, made);
  const bool has_bias = conv.bias.defined() || (bias.defined() && bias.any().item<bool>());
  conv.node->replaceInput(2, constant(has_bias ? bias : at::Tensor()));
}

}  // namespace torchalgo

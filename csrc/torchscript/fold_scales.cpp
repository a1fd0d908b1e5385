// SPDX-License-Identifier: BSD-3-Clause
#include "torchscript/fold_scales.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <optional>
#include <vector>

#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;

namespace {

// Returns the constant as a vector of one number per channel, or nullopt if it has another form: it
// must be [c, 1, 1] or [1, c, 1, 1] and of the type of the weights.
std::optional<at::Tensor> as_scale(const Value* value, const at::Tensor& weight) {
  const std::optional<at::Tensor> tensor = constant_tensor(value);
  if (!tensor || tensor->scalar_type() != weight.scalar_type()) return std::nullopt;
  const std::int64_t channels = weight.size(0);
  const bool is_vector = tensor->sizes() == at::IntArrayRef{channels, 1, 1} ||
                         tensor->sizes() == at::IntArrayRef{1, channels, 1, 1};
  return is_vector ? std::optional(tensor->reshape({channels})) : std::nullopt;
}

// Folds one product of a convolution's result, which is input `of_result` of `mul`.
bool fold(Graph& graph, Node* mul, std::size_t of_result) {
  const Value* result = mul->input(of_result);
  Node* const conv = const_cast<Node*>(result->node());
  if (!is_kind(conv, "aten::conv2d") || result->uses().size() != 1) return false;
  const std::optional<at::Tensor> weight = constant_tensor(conv->input(1));
  const std::optional<at::Tensor> bias = constant_tensor(conv->input(2));
  if (!weight || (!bias && !is_none(conv->input(2)))) return false;
  const std::optional<at::Tensor> scale = as_scale(mul->input(1 - of_result), *weight);
  if (!scale) return false;
  const WithInsertPoint at(conv);
  conv->replaceInput(1, graph.insertConstant(*weight * scale->view({-1, 1, 1, 1})));
  if (bias) conv->replaceInput(2, graph.insertConstant(*bias * *scale));
  mul->output()->replaceAllUsesWith(conv->output());
  return true;
}

}  // namespace

bool fold_scales(std::shared_ptr<Graph>& graph) {
  bool is_changed = false;
  const std::vector<Node*> nodes(graph->nodes().begin(), graph->nodes().end());
  for (Node* node : nodes) {
    if (!is_kind(node, "aten::mul") || !is_tensor(node->input(1))) continue;
    is_changed |= fold(*graph, node, 0) || fold(*graph, node, 1);
  }
  if (is_changed) torch::jit::EliminateDeadCode(graph);
  return is_changed;
}

}  // namespace torchalgo

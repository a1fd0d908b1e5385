// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/complete_norms.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/ir/constants.h>

#include <array>
#include <optional>
#include <vector>

#include "simplify/fixed_channels.h"
#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

// Returns the description of the norm's result if that is a floating-point image, or null.
const SeenTensor* find_image(const Node* norm, const SeenTensors& seen) {
  const auto it = seen.find(norm->output());
  if (it == seen.end() || !it->second.is_always_so || !it->second.is_strided) return nullptr;
  const SeenTensor& tensor = it->second;
  const bool is_image = tensor.sizes.size() == 3 || tensor.sizes.size() == 4;
  return is_image && dtype_of_scalar(tensor.scalar_type) ? &tensor : nullptr;
}

// Puts another op in the place of `norm`.
void replace(Node* norm, const char* kind, const std::vector<Value*>& inputs, SeenTensors& seen) {
  Graph* const graph = norm->owningGraph();
  Node* const made = graph->create(c10::Symbol::fromQualString(kind), inputs);
  made->insertBefore(norm)->copyMetadata(norm);
  made->output()->setType(norm->output()->type());
  seen[made->output()] = seen.at(norm->output());
  seen.erase(norm->output());
  norm->output()->replaceAllUsesWith(made->output());
  norm->destroy();
}

// Returns true if the graph fixes the channels of the norm's tensors for all inputs.
bool fixes_channels(const Node* norm, const SeenTensor& image) {
  return constant_tensor(norm->namedInput("weight")) || constant_tensor(norm->namedInput("bias")) ||
         has_fixed_channels(norm->input(0), image.sizes) ||
         is_read_by_convolution(norm->output(), image.sizes);
}

void complete(Node* norm, const SeenTensor& image, SeenTensors& seen) {
  Graph* const graph = norm->owningGraph();
  const bool is_group_norm = is_kind(norm, "aten::group_norm");
  Value *weight = norm->namedInput("weight"), *bias = norm->namedInput("bias");
  const bool is_complete = is_group_norm && !is_none(weight) && !is_none(bias);
  if (is_complete || !fixes_channels(norm, image)) return;
  const torch::jit::WithInsertPoint at(norm);
  const auto options = at::TensorOptions().dtype(image.scalar_type).device(image.device);
  const std::int64_t channels = image.sizes[1];
  if (is_none(weight)) weight = graph->insertConstant(at::ones(channels, options));
  if (is_none(bias)) bias = graph->insertConstant(at::zeros(channels, options));
  Value* const groups =
      is_group_norm ? norm->namedInput("num_groups") : graph->insertConstant(channels);
  replace(norm, "aten::group_norm",
          {norm->input(0), groups, weight, bias, norm->namedInput("eps"),
           norm->namedInput("cudnn_enabled")},
          seen);
}

void complete_instance_norm(Node* norm, const SeenTensor& image, SeenTensors& seen) {
  const std::optional<bool> uses_input = constant_bool(norm->namedInput("use_input_stats"));
  if (uses_input == false) {  // the arguments have the same order
    const auto inputs = norm->inputs();
    return replace(norm, "aten::batch_norm", {inputs.begin(), inputs.end()}, seen);
  }
  const bool keeps_none =
      is_none(norm->namedInput("running_mean")) && is_none(norm->namedInput("running_var"));
  if (uses_input == true && keeps_none) complete(norm, image, seen);
}

}  // namespace

void complete_norms(std::shared_ptr<Graph>& graph, SeenTensors& seen) {
  const std::vector<Node*> nodes(graph->nodes().begin(), graph->nodes().end());
  for (Node* node : nodes) {
    const bool is_instance_norm = is_kind(node, "aten::instance_norm");
    if (!is_instance_norm && !is_kind(node, "aten::group_norm")) continue;
    const SeenTensor* const found = find_image(node, seen);
    if (found == nullptr) continue;
    const SeenTensor image = *found;  // `seen` may move its elements
    if (is_instance_norm) {
      complete_instance_norm(node, image, seen);
    } else {
      complete(node, image, seen);
    }
  }
}

}  // namespace torchalgo

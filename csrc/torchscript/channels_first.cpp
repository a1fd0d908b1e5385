// SPDX-License-Identifier: BSD-3-Clause
#include "torchscript/channels_first.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;

namespace {

using Sizes = std::vector<std::int64_t>;

// They change each element by itself, so that a permute may stand on either side.
constexpr std::array<std::string_view, 9> kElementwise = {
    "aten::gelu",        "aten::relu",    "aten::relu6", "aten::silu",      "aten::hardswish",
    "aten::hardsigmoid", "aten::sigmoid", "aten::tanh",  "aten::leaky_relu"};

bool is_elementwise(const Node* node) {
  return std::any_of(kElementwise.begin(), kElementwise.end(),
                     [&](std::string_view kind) { return is_kind(node, kind); });
}

// Returns true for a linear layer with constant weights [k, c], and a constant bias or none.
bool is_constant_linear(const Node* node) {
  if (!is_kind(node, "aten::linear")) return false;
  const std::optional<at::Tensor> weight = constant_tensor(node->input(1));
  const bool has_plain_bias = is_none(node->input(2)) || constant_tensor(node->input(2));
  return weight && weight->dim() == 2 && has_plain_bias;
}

// Returns the node behind which a permute of `value` can move up: all nodes between are linear
// layers and activations whose results nobody else reads. Above stands the permute that moved the
// channels to the end, perhaps with a layer norm between. Returns null if there is no such node.
Node* find_start(const Value* value) {
  for (;;) {
    Node* const node = const_cast<Node*>(value->node());
    if (is_permute(node, {0, 2, 3, 1})) return node;
    if (value->uses().size() != 1) return nullptr;
    if (is_kind(node, "aten::layer_norm")) {
      const Node* before = node->input(0)->node();
      return is_permute(before, {0, 2, 3, 1}) ? node : nullptr;
    }
    if (!is_elementwise(node) && !is_constant_linear(node)) return nullptr;
    value = node->input(0);
  }
}

class Mover {
 public:
  explicit Mover(Graph& graph) : graph_(graph) {}

  bool run() {
    bool is_changed = false;
    const std::vector<Node*> nodes(graph_.nodes().begin(), graph_.nodes().end());
    for (Node* node : nodes) {
      if (!is_permute(node, {0, 3, 1, 2})) continue;
      Node* const start = find_start(node->input(0));
      const bool is_norm_only = start == node->input(0)->node() && !is_permute(start, {0, 2, 3, 1});
      if (start == nullptr || is_norm_only) continue;
      node->output()->replaceAllUsesWith(channels_first(node->input(0), start));
      is_changed = true;
    }
    return is_changed;
  }

 private:
  // Returns `value` with the channels in front. Each new node stands where the node stood that it
  // replaces, so that it reads the same values even where a tensor is changed in place later on.
  Value* channels_first(Value* value, const Node* start) {
    Node* const node = value->node();
    if (node == start) {
      if (is_permute(node, {0, 2, 3, 1})) return node->input(0);
      const WithInsertPoint at(node->next());
      return insert("aten::permute", {value, graph_.insertConstant(Sizes{0, 3, 1, 2})}, node);
    }
    Value* const src = channels_first(node->input(0), start);
    const WithInsertPoint at(node);
    if (is_kind(node, "aten::linear")) return insert_convolution(node, src);
    std::vector<Value*> inputs(node->inputs().begin(), node->inputs().end());
    inputs[0] = src;
    return insert(node->kind().toQualString(), inputs, node);
  }

  Value* insert_convolution(const Node* linear, Value* src) {
    const at::Tensor weight = *constant_tensor(linear->input(1));
    Value* const filters =
        graph_.insertConstant(weight.reshape({weight.size(0), weight.size(1), 1, 1}));
    Value* const ones = graph_.insertConstant(Sizes{1, 1});
    Value* const zeros = graph_.insertConstant(Sizes{0, 0});
    Value* const groups = graph_.insertConstant(1);
    return insert("aten::conv2d",
                  {src, filters, const_cast<Value*>(linear->input(2)), ones, zeros, ones, groups},
                  linear);
  }

  Value* insert(std::string_view kind, const std::vector<Value*>& inputs, const Node* like) {
    Node* const made =
        graph_.insertNode(graph_.create(c10::Symbol::fromQualString(std::string(kind)), inputs));
    made->copyMetadata(const_cast<Node*>(like));
    return made->output();
  }

  Graph& graph_;
};

}  // namespace

bool move_channels_first(std::shared_ptr<Graph>& graph) {
  if (!Mover(*graph).run()) return false;
  torch::jit::EliminateDeadCode(graph);
  return true;
}

}  // namespace torchalgo

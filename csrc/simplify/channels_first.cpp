// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/channels_first.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;

namespace {

using Sizes = std::vector<std::int64_t>;

constexpr std::array<std::string_view, 4> kArithmetic = {"aten::add", "aten::sub", "aten::mul",
                                                         "aten::div"};
// Their second or third argument `dim` names one dimension.
constexpr std::array<std::string_view, 5> kOfOneDim = {"aten::slice", "aten::narrow", "aten::chunk",
                                                       "aten::split", "aten::split_with_sizes"};

// Returns the dimension of [n, c, h, w] for one of [n, h, w, c].
std::int64_t moved(std::int64_t dim) {
  constexpr std::array<std::int64_t, 4> kMoved = {0, 2, 3, 1};
  return kMoved.at(static_cast<std::size_t>(dim < 0 ? dim + 4 : dim));
}

bool is_dim(const std::optional<double>& number) { return number && *number >= -4 && *number < 4; }

bool is_opening(const Node* node) { return is_permute(node, {0, 2, 3, 1}); }
bool is_closing(const Node* node) { return is_permute(node, {0, 3, 1, 2}); }

// Parts of the network that are connected through tensors with their channels last.
class Parts {
 public:
  int make() {
    parents_.push_back(static_cast<int>(parents_.size()));
    return parents_.back();
  }
  int find(int part) const {
    while (parents_[part] != part) part = parents_[part];
    return part;
  }
  int join(int a, int b) { return parents_[find(b)] = find(a); }

 private:
  std::vector<int> parents_;
};

class Mover {
 public:
  Mover(std::shared_ptr<Graph>& graph, const SeenTensors& seen)
      : graph_(*graph), aliases_(graph), seen_(seen) {}

  bool run() {
    const std::vector<Node*> nodes(graph_.nodes().begin(), graph_.nodes().end());
    for (Node* node : nodes) assign_part(node);
    if (useful_parts_.empty()) return false;
    for (Node* node : nodes) move(node);
    return true;
  }

 private:
  // --- The parts, without any change.

  void assign_part(Node* node) {
    if (is_opening(node)) {
      if (!aliases_.hasWriters(node->output())) part_[node->output()] = parts_.make();
      return;
    }
    const std::vector<Value*> sources = sources_of(node);
    int part = -1;
    for (const Value* source : sources) {
      const auto it = part_.find(source);
      if (it == part_.end()) continue;
      part = part < 0 ? it->second : parts_.join(part, it->second);
    }
    if (part < 0 || has_writers(node)) return;
    if (is_closing(node) || is_constant_linear(node)) useful_parts_.push_back(part);
    if (is_closing(node) || !can_move(node, sources)) return;
    for (const Value* output : node->outputs()) part_[output] = part;
  }

  [[nodiscard]] bool has_writers(const Node* node) const {
    const auto outputs = node->outputs();
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](const Value* output) { return aliases_.hasWriters(output); });
  }

  [[nodiscard]] bool is_useful(const Value* value) const {
    const auto it = part_.find(value);
    if (it == part_.end()) return false;
    return std::any_of(useful_parts_.begin(), useful_parts_.end(),
                       [&](int part) { return parts_.find(part) == parts_.find(it->second); });
  }

  // Returns the tensors that the node reads, also those of a list.
  static std::vector<Value*> sources_of(const Node* node) {
    if (is_kind(node, "aten::cat") && is_fixed_list(node->input(0))) {
      const auto items = node->input(0)->node()->inputs();
      return {items.begin(), items.end()};
    }
    std::vector<Value*> sources;
    const bool has_two = is_any(node, kArithmetic);
    for (std::size_t i = 0; i < node->inputs().size() && i < (has_two ? 2 : 1); ++i) {
      Value* const input = const_cast<Value*>(node->input(i));
      if (is_tensor(input) && !constant_tensor(input)) sources.push_back(input);
      if (is_kind(node, "prim::ListUnpack")) sources.push_back(input);
    }
    return sources;
  }

  [[nodiscard]] bool has_rank4(const Value* value) const {
    const auto it = seen_.find(value);
    return it != seen_.end() && it->second.is_always_so && it->second.sizes.size() == 4;
  }

  // Returns true if the node can be computed with the channels in dimension 1, given that one of
  // its sources can.
  [[nodiscard]] bool can_move(const Node* node, const std::vector<Value*>& sources) const {
    if (is_elementwise(node) || is_constant_linear(node)) return true;
    if (is_kind(node, "aten::contiguous")) return true;
    if (is_any(node, kArithmetic)) return can_move_arithmetic(node, sources);
    if (is_kind(node, "aten::layer_norm")) {
      const auto sizes = constant_ints(node->input(1));
      return sizes && sizes->size() == 1;
    }
    if (is_kind(node, "aten::cat")) {
      return is_dim(constant_number(node->input(1))) &&
             std::all_of(sources.begin(), sources.end(),
                         [&](const Value* source) { return has_rank4(source); });
    }
    if (is_any(node, kOfOneDim)) return is_dim(constant_number(node->namedInput("dim")));
    if (is_kind(node, "prim::ListUnpack")) return true;
    if (is_kind(node, "aten::mean") && node->hasNamedInput("keepdim")) {
      const auto dims = constant_ints(node->namedInput("dim"));
      return dims && constant_bool(node->namedInput("keepdim")) == true &&
             std::all_of(dims->begin(), dims->end(), [](auto d) { return d >= -4 && d < 4; });
    }
    return false;
  }

  [[nodiscard]] bool can_move_arithmetic(const Node* node,
                                         const std::vector<Value*>& sources) const {
    if (node->hasNamedInput("rounding_mode") || !has_rank4(node->output())) return false;
    for (const Value* source : sources) {
      if (!has_rank4(source)) return false;
    }
    const auto is_operand = [](const Value* input) {
      const auto constant = constant_tensor(input);
      return !constant || constant->dim() <= 4;
    };
    return is_operand(node->input(0)) && is_operand(node->input(1));
  }

  // --- The change.

  // Replaces the node by one on tensors with their channels in dimension 1. The new node stands
  // where the old one stood, so that it reads the same values even where a tensor is changed in
  // place later on.
  void move(Node* node) {
    if (is_opening(node)) {
      if (is_useful(node->output())) first_[node->output()] = node->input(0);
      return;
    }
    if (is_closing(node)) {
      const auto it = first_.find(node->input(0));
      if (it != first_.end()) node->output()->replaceAllUsesWith(it->second);
      return;
    }
    if (node->outputs().empty() || !is_useful(node->output(0))) return;
    if (is_kind(node, "aten::contiguous")) {
      first_[node->output()] = first_.at(node->input(0));
      return;
    }
    const WithInsertPoint at(node);
    Node* const made = make(node);
    for (std::size_t i = 0; i < node->outputs().size(); ++i) {
      Value* const last = node->output(i);
      Value* const first = made->output(i);
      if (!is_tensor(last)) {  // the list of a split
        first_[last] = first;
        continue;
      }
      // A reader outside of the part may need contiguous memory, as a view does.
      Value* const permuted = permute(first, {0, 2, 3, 1}, node);
      Value* const format =
          graph_.insertConstant(static_cast<std::int64_t>(c10::MemoryFormat::Contiguous));
      Value* const dense = insert(torch::jit::aten::contiguous, {permuted, format}, node)->output();
      dense->setType(c10::TensorType::get());
      last->replaceAllUsesWith(dense);
      first_[dense] = first;
    }
  }

  Node* make(Node* node) {
    std::vector<Value*> inputs(node->inputs().begin(), node->inputs().end());
    if (is_kind(node, "aten::cat")) {
      std::vector<Value*> items;
      for (Value* item : sources_of(node)) items.push_back(channels_first(item, node));
      inputs[0] = graph_.insertNode(graph_.createList(c10::TensorType::get(), items))->output();
      return insert_along(node, inputs, "dim");
    }
    inputs[0] = channels_first(inputs[0], node);
    if (is_any(node, kArithmetic)) inputs[1] = channels_first(inputs[1], node);
    if (is_kind(node, "aten::linear")) return insert_convolution(node, inputs[0]);
    if (is_kind(node, "aten::layer_norm")) {
      inputs[0] = permute(inputs[0], {0, 2, 3, 1}, node);
      Value* const normed = insert(node->kind(), inputs, node)->output();
      return permute(normed, {0, 3, 1, 2}, node)->node();
    }
    if (is_any(node, kOfOneDim)) return insert_along(node, inputs, "dim");
    if (is_kind(node, "prim::ListUnpack")) {
      Node* const unpack =
          graph_.insertNode(graph_.create(node->kind(), inputs, node->outputs().size()));
      for (Value* output : unpack->outputs()) output->setType(c10::TensorType::get());
      return unpack;
    }
    if (is_kind(node, "aten::mean")) {
      Sizes dims = *constant_ints(node->namedInput("dim"));
      std::transform(dims.begin(), dims.end(), dims.begin(), moved);
      inputs[1] = graph_.insertConstant(dims);
    }
    return insert(node->kind(), inputs, node);
  }

  // Returns an operand with its channels in dimension 1. A number is returned as it is.
  Value* channels_first(Value* value, Node* like) {
    if (const auto it = first_.find(value); it != first_.end()) return it->second;
    if (const std::optional<at::Tensor> constant = constant_tensor(value)) {
      if (constant->dim() == 0) return value;
      Sizes sizes(4 - static_cast<std::size_t>(constant->dim()), 1);
      const auto own = constant->sizes();
      sizes.insert(sizes.end(), own.begin(), own.end());
      return graph_.insertConstant(constant->reshape(sizes).permute({0, 3, 1, 2}).contiguous());
    }
    return is_tensor(value) ? permute(value, {0, 3, 1, 2}, like) : value;
  }

  Value* permute(Value* value, const Sizes& dims, Node* like) {
    return insert(torch::jit::aten::permute, {value, graph_.insertConstant(dims)}, like)->output();
  }

  Node* insert_along(Node* node, std::vector<Value*> inputs, const char* name) {
    const std::int64_t dim =
        moved(static_cast<std::int64_t>(*constant_number(node->namedInput(name))));
    const auto at = std::find(inputs.begin(), inputs.end(), node->namedInput(name));
    *at = graph_.insertConstant(dim);
    return insert(node->kind(), inputs, node);
  }

  Node* insert_convolution(Node* linear, Value* src) {
    const at::Tensor weight = *constant_tensor(linear->input(1));
    Value* const filters =
        graph_.insertConstant(weight.reshape({weight.size(0), weight.size(1), 1, 1}));
    Value* const ones = graph_.insertConstant(Sizes{1, 1});
    Value* const zeros = graph_.insertConstant(Sizes{0, 0});
    Value* const groups = graph_.insertConstant(1);
    return insert(torch::jit::aten::conv2d,
                  {src, filters, linear->input(2), ones, zeros, ones, groups}, linear);
  }

  Node* insert(c10::Symbol kind, const std::vector<Value*>& inputs, Node* like) {
    Node* const made = graph_.insertNode(graph_.create(kind, inputs));
    made->copyMetadata(like);
    // A split makes a list. The types of tensors are not copied: they hold strides.
    const bool is_list =
        like->outputs().size() == 1 && kind == like->kind() && !is_tensor(like->output());
    if (is_list) made->output()->setType(like->output()->type());
    return made;
  }

  Graph& graph_;
  torch::jit::AliasDb aliases_;  // of the graph before the change, which adds no writer
  const SeenTensors& seen_;
  Parts parts_;
  std::unordered_map<const Value*, int> part_;  // of each tensor with its channels last
  std::vector<int> useful_parts_;
  std::unordered_map<const Value*, Value*> first_;  // the same tensor with its channels first
};

}  // namespace

bool move_channels_first(std::shared_ptr<Graph>& graph, const SeenTensors& seen) {
  if (!Mover(graph, seen).run()) return false;
  torch::jit::EliminateDeadCode(graph);
  return true;
}

}  // namespace torchalgo

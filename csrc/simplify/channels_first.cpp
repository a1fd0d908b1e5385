// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/channels_first.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "simplify/channels_last.h"
#include "simplify/shape_proofs.h"
#include "simplify/written_norms.h"
#include "torchscript/constants.h"
#include "torchscript/graph_sizes.h"

namespace torchalgo {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;

namespace {

using Sizes = std::vector<std::int64_t>;

// Returns the dimension of [n, c, h, w] for one of [n, h, w, c], or of [n, t, c] with h = 1.
std::int64_t moved(std::int64_t dim, std::int64_t rank) {
  constexpr std::array<std::int64_t, 4> kOfImage = {0, 2, 3, 1};
  constexpr std::array<std::int64_t, 3> kOfTokens = {0, 3, 1};
  const auto index = static_cast<std::size_t>(dim < 0 ? dim + rank : dim);
  return rank == 3 ? kOfTokens.at(index) : kOfImage.at(index);
}

// Returns true for the change from [n, c, t] to [n, t, c], or back.
bool swaps_tokens(const Node* node, const SeenTensors& seen) {
  const bool has_rank = !is_kind(node, "aten::transpose") || rank_of(node->input(0), seen) == 3;
  return has_rank && swaps_dims(node, 1, 2, 3);
}

class Mover {
 public:
  Mover(std::shared_ptr<Graph>& graph, const SeenTensors& seen)
      : graph_(*graph), aliases_(graph), seen_(seen), proofs_(seen) {
    last_ = find_channels_last(graph, seen);
  }

  bool run() {
    if (last_.empty()) return false;
    const std::vector<Node*> nodes(graph_.nodes().begin(), graph_.nodes().end());
    for (Node* node : nodes) move(node);
    return true;
  }

 private:
  // Replaces the node by one on tensors with their channels in dimension 1. The new node stands
  // where the old one stood, so that it reads the same values even where a tensor is changed in
  // place later on.
  void move(Node* node) {
    if (is_opening(node)) {
      if (last_.contains(node->output())) first_[node->output()] = node->input(0);
      return;
    }
    if (is_closing(node)) {
      const auto it = first_.find(node->input(0));
      if (it != first_.end()) node->output()->replaceAllUsesWith(it->second);
      return;
    }
    if (is_view(node)) return make_image(node);
    if (node->outputs().empty() || !last_.contains(node->output(0))) return;
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
      const std::int64_t rank = rank_of(last, seen_).value_or(4);
      Value* const dense = channels_last(first, rank, node);
      answer_sizes(last, first, rank);
      replace(last, dense);
      first_[dense] = first;
    }
  }

  // Lets all readers of the tensor read `by`, which has the same elements.
  void replace(Value* tensor, Value* by) {
    if (const auto seen = seen_.find(tensor); seen != seen_.end()) {
      const SeenTensor same = seen->second;
      seen_[by] = same;
    }
    tensor->replaceAllUsesWith(by);
  }

  // Returns the tensor as the model has it. A reader outside of the part may need dense memory, as
  // a view does.
  Value* channels_last(Value* first, std::int64_t rank, Node* like) {
    Value* const permuted = permute(first, {0, 2, 3, 1}, like);
    Value* const format =
        graph_.insertConstant(static_cast<std::int64_t>(c10::MemoryFormat::Contiguous));
    Value* dense = insert(torch::jit::aten::contiguous, {permuted, format}, like)->output();
    dense->setType(c10::TensorType::get());
    if (rank == 3) {
      dense = insert(torch::jit::aten::squeeze, {dense, graph_.insertConstant(1)}, like)->output();
    }
    return dense;
  }

  // Lets questions for the sizes of `last` read `first`, which needs no memory of its own for them.
  void answer_sizes(Value* last, Value* first, std::int64_t rank) {
    const auto uses = last->uses();
    for (const torch::jit::Use& use : uses) {
      Node* const query = use.user;
      if (!is_kind(query, "aten::size") || query->owningBlock() != graph_.block()) continue;
      const WithInsertPoint at(query);
      const auto size_of = [&](std::int64_t dim) {
        Value* const place = graph_.insertConstant(moved(dim, rank));
        Node* const size = insert(torch::jit::aten::size, {first, place}, query);
        return size->output()->setType(c10::IntType::get());
      };
      if (query->inputs().size() == 2) {
        const auto dim = constant_int(query->input(1));
        if (dim) query->output()->replaceAllUsesWith(size_of(*dim));
        continue;
      }
      std::vector<Value*> sizes;
      for (std::int64_t dim = 0; dim < rank; ++dim) sizes.push_back(size_of(dim));
      Node* const list = graph_.insertNode(graph_.createList(c10::IntType::get(), sizes));
      query->output()->replaceAllUsesWith(list->output());
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
    if (is_kind(node, "aten::rms_norm")) return insert_rms_norm(node, inputs[0]);
    const bool has_dim = is_any(node, kOfOneDim) || is_kind(node, "torchalgo::channel_norm");
    if (has_dim) return insert_along(node, inputs, "dim");
    if (is_kind(node, "prim::ListUnpack")) {
      Node* const unpack =
          graph_.insertNode(graph_.create(node->kind(), inputs, node->outputs().size()));
      for (Value* output : unpack->outputs()) output->setType(c10::TensorType::get());
      return unpack;
    }
    if (is_kind(node, "aten::mean")) {
      Sizes dims = *constant_ints(node->namedInput("dim"));
      for (std::int64_t& dim : dims) dim = moved(dim, 4);
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
    if (!is_tensor(value)) return value;
    return rank_of(value, seen_) == 3 ? image_of_tokens(value, like)
                                      : permute(value, {0, 3, 1, 2}, like);
  }

  // Returns tokens [n, t, c] from outside of the part as an image [n, c, 1, t].
  Value* image_of_tokens(Value* tokens, Node* like) {
    const bool is_written = aliases_.hasWriters(tokens);
    if (Value* const image = is_written ? nullptr : image_of_signal(tokens)) return image;
    if (Value* const dense = is_written ? nullptr : flat_image(tokens)) {
      replace(tokens, dense);
      tokens = dense;
    }
    // All readers share the image. If the tokens change in place, each reader needs its own.
    std::optional<WithInsertPoint> at;
    if (!is_written && tokens->node()->owningBlock() == graph_.block() &&
        tokens->node()->kind() != torch::jit::prim::Param) {
      at.emplace(tokens->node()->next());
    }
    Value* const row =
        insert(torch::jit::aten::unsqueeze, {tokens, graph_.insertConstant(1)}, like)->output();
    Value* const image = permute(row, {0, 3, 1, 2}, like);
    if (!is_written) first_[tokens] = image;
    return image;
  }

  // Returns [n, c, 1, t] for tokens that are a signal [n, c, t] with its last dimensions swapped.
  // Returns null for other tokens, and if the signal is an image whose rows were joined.
  Value* image_of_signal(Value* tokens) {
    Node* const swap = tokens->node();
    if (!swaps_tokens(swap, seen_)) return nullptr;
    Node* const source = swap->input(0)->node();
    const bool has_image = !source->inputs().empty() && rank_of(source->input(0), seen_) == 4;
    if (has_image && is_kind(source, "aten::squeeze") && dim_argument(source, "dim", 4) == 2) {
      return first_[tokens] = source->input(0);
    }
    if (has_image) return nullptr;
    const WithInsertPoint at(swap);
    Value* const two = graph_.insertConstant(2);
    return first_[tokens] =
               insert(torch::jit::aten::unsqueeze, {swap->input(0), two}, swap)->output();
  }

  // Returns [n, h * w, c] of an image for image.flatten(2).transpose(1, 2), without a copy if the
  // image is in nhwc. Returns null for other tokens.
  Value* flat_image(Value* tokens) {
    Node* const swap = tokens->node();
    if (!swaps_tokens(swap, seen_) || may_be_returned(tokens)) return nullptr;
    Node* const flat = swap->input(0)->node();
    if (flat->inputs().empty() || rank_of(flat->input(0), seen_) != 4) return nullptr;
    const bool is_flatten = is_kind(flat, "aten::flatten") &&
                            dim_argument(flat, "start_dim", 4) == 2 &&
                            dim_argument(flat, "end_dim", 4) == 3;
    if (!is_flatten && !(is_reshape(flat) && proofs_.flattens_image(flat))) return nullptr;
    const WithInsertPoint at(swap);
    Value* const image = channels_last(flat->input(0), 4, swap);
    Value* const one = graph_.insertConstant(1);
    Value* const two = graph_.insertConstant(2);
    return insert(torch::jit::aten::flatten, {image, one, two}, swap)->output();
  }

  // Replaces tokens.transpose(1, 2).reshape(n, c, h, w) by tokens.reshape(n, h, w, c) and a
  // permute, so that the image is in nhwc without a copy.
  void make_image(Node* view) {
    const Node* swap = view->input(0)->node();
    if (is_kind(swap, "aten::contiguous")) swap = swap->input(0)->node();
    if (!swaps_tokens(swap, seen_) || rank_of(view->output(), seen_) != 4) return;
    Value* const tokens = const_cast<Value*>(swap->input(0));
    if (!first_.contains(tokens) || !proofs_.keeps_channels(view)) return;
    if (!is_read_by_layers(view->output())) return;
    const WithInsertPoint at(view);
    std::vector<Value*> sizes;
    if (const auto constants = constant_ints(view->input(1))) {
      for (const std::int64_t size : *constants) sizes.push_back(graph_.insertConstant(size));
    } else {
      const auto entries = view->input(1)->node()->inputs();
      sizes = {entries.begin(), entries.end()};
    }
    std::rotate(sizes.begin() + 1, sizes.begin() + 2, sizes.end());
    Node* const list = graph_.insertNode(graph_.createList(c10::IntType::get(), sizes));
    Value* const last = insert(torch::jit::aten::reshape, {tokens, list->output()}, view)->output();
    view->output()->replaceAllUsesWith(permute(last, {0, 3, 1, 2}, view));
  }

  // Returns true if only ops that take any strides read the tensor.
  static bool is_read_by_layers(const Value* value) {
    const auto& uses = value->uses();
    return std::all_of(uses.begin(), uses.end(), [](const torch::jit::Use& use) {
      const Node* user = use.user;
      return is_convolution(user) || is_elementwise(user) || is_any(user, kArithmetic) ||
             is_kind(user, "aten::batch_norm") || is_kind(user, "aten::size");
    });
  }

  Value* permute(Value* value, const Sizes& dims, Node* like) {
    return insert(torch::jit::aten::permute, {value, graph_.insertConstant(dims)}, like)->output();
  }

  Node* insert_along(Node* node, std::vector<Value*> inputs, const char* name) {
    const auto named = static_cast<std::int64_t>(*constant_number(node->namedInput(name)));
    const std::int64_t dim = moved(named, rank_of(sources_of(node).at(0), seen_).value_or(4));
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

  Node* insert_rms_norm(Node* norm, Value* src) {
    const at::Tensor weight = *constant_tensor(norm->namedInput("weight"));
    const double own_eps = weight.scalar_type() == at::kDouble
                               ? std::numeric_limits<double>::epsilon()
                               : std::numeric_limits<float>::epsilon();
    const double eps = constant_number(norm->namedInput("eps")).value_or(own_eps);
    Node* const made =
        insert_channel_norm(graph_, LayerNormKind::kRms, src, weight, {}, eps, 1)->node();
    made->copyMetadata(norm);
    return made;
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
  SeenTensors seen_;
  ShapeProofs proofs_;
  std::unordered_set<const Value*> last_;           // tensors to compute with their channels first
  std::unordered_map<const Value*, Value*> first_;  // the same tensor with its channels first
};

}  // namespace

bool move_channels_first(std::shared_ptr<Graph>& graph, const SeenTensors& seen) {
  if (!Mover(graph, seen).run()) return false;
  torch::jit::EliminateDeadCode(graph);
  return true;
}

}  // namespace torchalgo

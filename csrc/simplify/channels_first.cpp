// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "simplify/channels_last.h"
#include "simplify/constant_conv.h"
#include "simplify/insert_layer.h"
#include "simplify/shape_proofs.h"
#include "torchscript/constants.h"
#include "torchscript/graph_sizes.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Value;

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
bool swaps_tokens(Node node, const SeenTensors& seen) {
  const bool has_rank = !node.is("aten::transpose") || rank_of(node.input(0), seen) == 3;
  return has_rank && swaps_dims(node, 1, 2, 3);
}

class Mover {
 public:
  Mover(const Graph& graph, const SeenTensors& seen)
      : graph_(graph), writes_(graph), seen_(seen), proofs_(seen) {
    last_ = find_channels_last(graph, seen);
  }

  bool run() {
    if (last_.empty()) return false;
    const std::vector<Node> nodes = graph_.nodes();
    for (const Node node : nodes) move(node);
    return true;
  }

 private:
  // Replaces the node by one on tensors with their channels in dimension 1. The new node stands
  // where the old one stood, so that it reads the same values even where a tensor is changed in
  // place later on.
  void move(Node node) {
    if (is_opening(node)) {
      if (last_.contains(node.output())) first_[node.output()] = node.input(0);
      return;
    }
    if (is_closing(node)) {
      const auto it = first_.find(node.input(0));
      if (it != first_.end()) node.output().replace_uses(it->second);
      return;
    }
    if (is_view(node)) return make_image(node);
    if (node.outputs().empty() || !last_.contains(node.output(0))) return;
    if (node.is("aten::contiguous")) {
      first_[node.output()] = first_.at(node.input(0));
      return;
    }
    const script::Builder at(node);
    const Node made = make(node, at);
    for (std::size_t i = 0; i < node.output_count(); ++i) {
      const Value last = node.output(i);
      const Value first = made.output(i);
      if (!is_tensor(last)) {  // the list of a split
        first_[last] = first;
        continue;
      }
      const std::int64_t rank = rank_of(last, seen_).value_or(4);
      const Value dense = channels_last(first, rank, at);
      answer_sizes(last, first, rank);
      replace(last, dense);
      first_[dense] = first;
    }
  }

  // Lets all readers of the tensor read `by`, which has the same elements.
  void replace(Value tensor, Value by) {
    if (const auto seen = seen_.find(tensor); seen != seen_.end()) {
      const SeenTensor same = seen->second;
      seen_[by] = same;
    }
    tensor.replace_uses(by);
  }

  // Returns the tensor as the model has it. A reader outside of the part may need dense memory, as
  // a view does.
  static Value channels_last(Value first, std::int64_t rank, const script::Builder& at) {
    const Value permuted = permute(first, {0, 2, 3, 1}, at);
    const auto format = static_cast<std::int64_t>(c10::MemoryFormat::Contiguous);
    const Value dense = at.op("aten::contiguous", {permuted, format});
    return rank == 3 ? at.op("aten::squeeze", {dense, 1}) : dense;
  }

  // Lets questions for the sizes of `last` read `first`, which needs no memory of its own for them.
  void answer_sizes(Value last, Value first, std::int64_t rank) {
    const auto uses = last.uses();
    for (const script::Use& use : uses) {
      const Node query = use.user;
      if (!query.is("aten::size") || query.block() != graph_.block()) continue;
      const script::Builder at(query);
      const auto size_of = [&](std::int64_t dim) {
        const Value size = at.op("aten::size", {first, moved(dim, rank)});
        size.set_type(c10::IntType::get());
        return size;
      };
      if (query.input_count() == 2) {
        const auto dim = constant_int(query.input(1));
        if (dim) query.output().replace_uses(size_of(*dim));
        continue;
      }
      std::vector<Value> sizes;
      for (std::int64_t dim = 0; dim < rank; ++dim) sizes.push_back(size_of(dim));
      query.output().replace_uses(at.ints(sizes));
    }
  }

  Node make(Node node, const script::Builder& at) {
    std::vector<Value> inputs = node.inputs();
    if (node.is("aten::cat")) {
      std::vector<Value> items;
      for (const Value item : sources_of(node)) items.push_back(channels_first(item, at));
      inputs[0] = at.tensors(items);
      return insert_along(node, inputs, "dim", at);
    }
    inputs[0] = channels_first(inputs[0], at);
    if (is_any(node, kArithmetic)) inputs[1] = channels_first(inputs[1], at);
    if (node.is("aten::linear")) {
      return insert_convolution(at, node, inputs[0], at.constant(filters_of(node))).node();
    }
    if (node.is("aten::layer_norm")) {
      inputs[0] = permute(inputs[0], {0, 2, 3, 1}, at);
      return permute(insert_like(node, inputs, at).output(), {0, 3, 1, 2}, at).node();
    }
    if (node.is("aten::rms_norm")) return insert_rms_norm(node, inputs[0], at);
    const bool has_dim = is_any(node, kOfOneDim) || node.is("torchalgo::channel_norm");
    if (has_dim) return insert_along(node, inputs, "dim", at);
    if (node.is("prim::ListUnpack")) {
      return at.like(nullptr).node(node.kind(), {inputs[0]}, node.output_count());
    }
    if (node.is("aten::mean")) {
      Sizes dims = *constant_ints(node.argument("dim"));
      for (std::int64_t& dim : dims) dim = moved(dim, 4);
      inputs[1] = at.constant(dims);
    }
    return insert_like(node, inputs, at);
  }

  // Returns an operand with its channels in dimension 1. A number is returned as it is.
  Value channels_first(Value value, const script::Builder& at) {
    if (const auto it = first_.find(value); it != first_.end()) return it->second;
    if (const std::optional<at::Tensor> constant = constant_tensor(value)) {
      if (constant->dim() == 0) return value;
      Sizes sizes(4 - static_cast<std::size_t>(constant->dim()), 1);
      const auto own = constant->sizes();
      sizes.insert(sizes.end(), own.begin(), own.end());
      return at.constant(constant->reshape(sizes).permute({0, 3, 1, 2}).contiguous());
    }
    if (!is_tensor(value)) return value;
    return rank_of(value, seen_) == 3 ? image_of_tokens(value, at)
                                      : permute(value, {0, 3, 1, 2}, at);
  }

  // Returns tokens [n, t, c] from outside of the part as an image [n, c, 1, t].
  Value image_of_tokens(Value tokens, const script::Builder& reader) {
    const bool is_written = writes_.has(tokens);
    if (const Value image = is_written ? nullptr : image_of_signal(tokens)) return image;
    if (const Value dense = is_written ? nullptr : flat_image(tokens)) {
      replace(tokens, dense);
      tokens = dense;
    }
    // All readers share the image. If the tokens change in place, each reader needs its own.
    const Node maker = tokens.node();
    const bool is_shared =
        !is_written && maker.block() == graph_.block() && !maker.is("prim::Param");
    const script::Builder at = is_shared ? reader.in_front_of(maker.next()) : reader;
    const Value image = permute(at.op("aten::unsqueeze", {tokens, 1}), {0, 3, 1, 2}, at);
    if (!is_written) first_[tokens] = image;
    return image;
  }

  // Returns [n, c, 1, t] for tokens that are a signal [n, c, t] with its last dimensions swapped.
  // Returns null for other tokens, and if the signal is an image whose rows were joined.
  Value image_of_signal(Value tokens) {
    const Node swap = tokens.node();
    if (!swaps_tokens(swap, seen_)) return nullptr;
    const Node source = swap.input(0).node();
    const bool has_image = !source.inputs().empty() && rank_of(source.input(0), seen_) == 4;
    if (has_image && source.is("aten::squeeze") && dim_argument(source, "dim", 4) == 2) {
      return first_[tokens] = source.input(0);
    }
    if (has_image) return nullptr;
    return first_[tokens] = script::Builder(swap).op("aten::unsqueeze", {swap.input(0), 2});
  }

  // Returns [n, h * w, c] of an image for image.flatten(2).transpose(1, 2), without a copy if the
  // image is in nhwc. Returns null for other tokens.
  Value flat_image(Value tokens) {
    const Node swap = tokens.node();
    if (!swaps_tokens(swap, seen_) || may_be_returned(tokens)) return nullptr;
    const Node flat = swap.input(0).node();
    if (flat.inputs().empty() || rank_of(flat.input(0), seen_) != 4) return nullptr;
    const bool is_flatten = flat.is("aten::flatten") && dim_argument(flat, "start_dim", 4) == 2 &&
                            dim_argument(flat, "end_dim", 4) == 3;
    if (!is_flatten && !(is_reshape(flat) && proofs_.flattens_image(flat))) return nullptr;
    const script::Builder at(swap);
    return at.op("aten::flatten", {channels_last(flat.input(0), 4, at), 1, 2});
  }

  // Replaces tokens.transpose(1, 2).reshape(n, c, h, w) by tokens.reshape(n, h, w, c) and a
  // permute, so that the image is in nhwc without a copy.
  void make_image(Node view) {
    Node swap = view.input(0).node();
    if (swap.is("aten::contiguous")) swap = swap.input(0).node();
    if (!swaps_tokens(swap, seen_) || rank_of(view.output(), seen_) != 4) return;
    const Value tokens = swap.input(0);
    if (!first_.contains(tokens) || !proofs_.keeps_channels(view)) return;
    if (!is_read_by_layers(view.output())) return;
    const script::Builder at(view);
    std::vector<Value> sizes;
    if (const auto constants = constant_ints(view.input(1))) {
      for (const std::int64_t size : *constants) sizes.push_back(at.constant(size));
    } else {
      sizes = view.input(1).node().inputs();
    }
    std::rotate(sizes.begin() + 1, sizes.begin() + 2, sizes.end());
    const Value last = at.op("aten::reshape", {tokens, at.ints(sizes)});
    view.output().replace_uses(permute(last, {0, 3, 1, 2}, at));
  }

  // Returns true if only ops that take any strides read the tensor.
  static bool is_read_by_layers(Value value) {
    const auto& uses = value.uses();
    return std::all_of(uses.begin(), uses.end(), [](const script::Use& use) {
      Node user = use.user;
      return is_convolution(user) || is_elementwise(user) || is_any(user, kArithmetic) ||
             user.is("aten::batch_norm", "aten::size");
    });
  }

  static Value permute(Value value, const Sizes& dims, const script::Builder& at) {
    return at.op("aten::permute", {value, dims});
  }

  Node insert_along(Node node, std::vector<Value> inputs, const char* name,
                    const script::Builder& at) {
    const auto named = static_cast<std::int64_t>(*constant_number(node.argument(name)));
    const std::int64_t dim = moved(named, rank_of(sources_of(node).at(0), seen_).value_or(4));
    *std::find(inputs.begin(), inputs.end(), node.argument(name)) = at.constant(dim);
    return insert_like(node, inputs, at);
  }

  static Node insert_rms_norm(Node norm, Value src, const script::Builder& at) {
    const at::Tensor weight = *constant_tensor(norm.argument("weight"));
    const double own_eps = weight.scalar_type() == at::kDouble
                               ? std::numeric_limits<double>::epsilon()
                               : std::numeric_limits<float>::epsilon();
    const double eps = constant_number(norm.argument("eps")).value_or(own_eps);
    return insert_channel_norm(at, LayerNormKind::kRms, src, weight, {}, eps, 1).node();
  }

  // Inserts an op of the node's kind.
  static Node insert_like(Node node, const std::vector<Value>& inputs, const script::Builder& at) {
    const Node made = at.node(node.kind(), {inputs.begin(), inputs.end()});
    // A split makes a list. The types of tensors are not copied: they hold strides.
    if (!is_tensor(node.output())) made.output().set_type(node.output().type());
    return made;
  }

  const Graph& graph_;
  script::Writes writes_;  // of the graph before the change, which adds no writer
  SeenTensors seen_;
  ShapeProofs proofs_;
  std::unordered_set<Value> last_;          // tensors to compute with their channels first
  std::unordered_map<Value, Value> first_;  // the same tensor with its channels first
};

}  // namespace

bool move_channels_first(const Graph& graph, const SeenTensors& seen) {
  if (!Mover(graph, seen).run()) return false;
  graph.remove_dead_code();
  return true;
}

}  // namespace torchalgo

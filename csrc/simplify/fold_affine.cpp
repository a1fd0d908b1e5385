// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "simplify/affine.h"
#include "simplify/constant_conv.h"
#include "simplify/fixed_channels.h"
#include "torchscript/constants.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Value;

namespace {

using Sizes = std::vector<std::int64_t>;

// Their results are often not contiguous, and a planned op would copy them first.
constexpr std::array<std::string_view, 6> kStrided = {"aten::permute", "aten::transpose",
                                                      "aten::t",       "aten::select",
                                                      "aten::unbind",  "prim::ListUnpack"};

bool is_strided(Value value) { return is_any(value.node(), kStrided); }

bool pads_nothing(const ConstantConv& conv) {
  if (!conv.node.has_argument("padding")) return true;
  const auto padding = constant_ints(conv.node.argument("padding"));
  return padding && std::all_of(padding->begin(), padding->end(), [](auto p) { return p == 0; });
}

// Returns weights [k, c / groups, ...] as [groups, k / groups, c / groups, ...]. If the convolution
// is transposed, the two are the other way around.
at::Tensor by_groups(const ConstantConv& conv) {
  Sizes sizes = conv.weight.sizes().vec();
  sizes[0] /= conv.groups;
  sizes.insert(sizes.begin(), conv.groups);
  return as_f64(conv.weight).reshape(sizes);
}

// Returns a vector of one number per channel as a factor of by_groups(). `dim` is 1 or 2.
at::Tensor factor_of(const at::Tensor& vector, const ConstantConv& conv, std::size_t dim) {
  Sizes sizes(static_cast<std::size_t>(conv.weight.dim()) + 1, 1);
  sizes[0] = conv.groups;
  sizes[dim] = vector.numel() / conv.groups;
  return vector.reshape(sizes);
}

// Gives the convolution the weights with which it computes affine(conv(x)).
void fold_after(const ConstantConv& conv, const Affine& affine) {
  const at::Tensor factor = factor_of(affine.scale, conv, conv.is_transposed ? 2 : 1);
  const at::Tensor weight = (by_groups(conv) * factor).reshape(conv.weight.sizes());
  const at::Tensor bias =
      conv.bias.defined() ? as_f64(conv.bias) * affine.scale + affine.shift : affine.shift;
  replace_weights(conv, weight.to(conv.weight.device()), bias.to(conv.weight.device()));
}

// Gives the convolution the weights with which it computes conv(affine(x)).
void fold_before(const ConstantConv& conv, const Affine& affine) {
  const at::Tensor grouped = by_groups(conv);
  const at::Tensor weight = grouped * factor_of(affine.scale, conv, 2);
  at::Tensor bias = conv.bias;
  if (affine.shift.any().item<bool>()) {
    const at::Tensor shifts = grouped * factor_of(affine.shift, conv, 2);
    bias = shifts.flatten(2).sum(2).flatten();
    if (conv.bias.defined()) bias = bias + as_f64(conv.bias);
    bias = bias.to(conv.weight.device());
  }
  replace_weights(conv, weight.reshape(conv.weight.sizes()).to(conv.weight.device()), bias);
}

// Returns true unless the weights are f16 and would become so small or large that they lose digits.
bool keeps_digits(const ConstantConv& conv, const Affine& affine) {
  if (conv.weight.scalar_type() != at::kHalf) return true;
  const at::Tensor sizes = affine.scale.abs();
  return sizes.ge(1.0 / 64).logical_and(sizes.le(64)).all().item<bool>();
}

// Returns the largest cancellation of a sum whose order may change. In f32, rounding a weight
// changes it by at most 2^-24. If terms are 128 times larger than their sum, this changes the sum
// by at most 2^-17 = 7.6e-6, which is below the error that `optimize` allows a primitive by
// default, 1e-5. In f16 and bf16 a weight changes by 2^-11 and 2^-8, and 4e-3 and 3e-2 are allowed.
double most_cancellation(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? 8 : 128;
}

class Folder {
 public:
  Folder(const Graph& graph, const SeenTensors& seen)
      : graph_(graph), writes_(graph), seen_(seen) {}

  bool run() {
    const std::vector<Node> nodes = graph_.nodes();
    for (const Node node : nodes) {
      if (std::optional<Affine> affine = read_affine(node, seen_)) take(node, std::move(*affine));
    }
    for (Node node : kept_) place(node, found_.at(node.output()));
    if (is_changed_) graph_.remove_dead_code();
    return is_changed_;
  }

 private:
  struct Found {
    Affine affine;
    std::vector<Node> before;  // the other nodes of the chain, the first one first
    bool is_src_written;       // somewhere in the graph
  };

  // Joins the node with the affine functions before it, and all of them with a convolution before
  // them.
  void take(Node node, Affine affine) {
    std::vector<Node> chain;
    bool is_src_written = writes_.has(affine.src);
    const auto before = found_.find(affine.src);
    if (before != found_.end() && has_one_reader(affine.src) && !before->second.is_src_written &&
        !cancels(node, compose(affine, before->second.affine))) {
      const Node last = affine.src.node();
      affine = compose(affine, before->second.affine);
      chain = std::move(before->second.before);
      chain.push_back(last);
      is_src_written = false;
      found_.erase(before);
      std::erase(kept_, last);
    }
    const auto conv = read_constant_layer(affine.src.node());
    const bool is_only_reader = has_one_reader(affine.src);
    if (conv && is_only_reader && has_channels(*conv, node, result_channels(*conv)) &&
        keeps_digits(*conv, affine)) {
      fold_after(*conv, affine);
      return replace(node, chain, affine.src);
    }
    found_.insert_or_assign(node.output(),
                            Found{std::move(affine), std::move(chain), is_src_written});
    kept_.push_back(node);
  }

  // Returns true if dimension 1 of the node's tensors holds `channels` of the convolution: an input
  // without a batch has its channels in dimension 0.
  [[nodiscard]] bool has_channels(const ConstantConv& conv, Node node,
                                  std::int64_t channels) const {
    const auto& sizes = seen_.at(node.output()).sizes;
    return std::ssize(sizes) == conv.weight.dim() && sizes[1] == channels;
  }

  [[nodiscard]] bool cancels(Node node, const Affine& affine) const {
    return affine.cancellation > most_cancellation(seen_.at(node.output()).scalar_type);
  }

  // Puts the function into the convolutions that read its result, or makes one node of it.
  void place(Node node, const Found& found) {
    const Affine& affine = found.affine;
    const bool is_free = !found.is_src_written && !cancels(node, affine);
    if (is_free && fold_into_readers(node, affine)) return;
    const SeenTensor& seen = seen_.at(node.output());
    if (seen.sizes.size() == 2) return;  // import_graph plans batch norms of images only
    const bool is_alone = found.before.empty();
    if (is_alone && (node.is("aten::batch_norm") || is_strided(affine.src))) return;
    if (!affine.is_per_channel && !are_channels_fixed(affine.src, node.output(), seen.sizes))
      return;
    const script::Builder at(node);
    const auto constant = [&](const at::Tensor& tensor) {
      return at.constant(tensor.to(seen.device, seen.scalar_type).contiguous());
    };
    const Value scale = constant(affine.scale), shift = constant(affine.shift);
    const Value mean = constant(at::zeros_like(affine.scale));
    const Value variance = constant(at::ones_like(affine.scale));
    const Value no = at.constant(false), zero = at.constant(0.0);
    const Value made =
        at.call("aten::batch_norm", {affine.src, scale, shift, mean, variance, no, zero, zero, no});
    replace(node, found.before, made);
  }

  bool fold_into_readers(Node node, const Affine& affine) {
    const bool has_shift = affine.shift.any().item<bool>();
    std::vector<ConstantConv> readers;
    for (const script::Use& use : node.output().uses()) {
      const auto conv = read_constant_layer(use.user);
      if (!conv || use.offset != 0 || conv->is_transposed) return false;
      if (!has_channels(*conv, node, conv->weight.size(1) * conv->groups)) return false;
      if ((has_shift && !pads_nothing(*conv)) || !keeps_digits(*conv, affine)) return false;
      readers.push_back(*conv);
    }
    if (readers.empty()) return false;
    for (const ConstantConv& conv : readers) {
      fold_before(conv, affine);
      conv.node.replace_input(0, affine.src);
    }
    is_changed_ = true;
    return true;
  }

  // Puts `by` where the result of a chain was read, and removes the chain: a node without readers
  // would still count as a reader.
  void replace(Node last, const std::vector<Node>& before, Value by) {
    last.output().replace_uses(by);
    for (auto& [value, found] : found_) {
      if (found.affine.src == last.output()) found.affine.src = by;
    }
    last.destroy();
    for (auto node = before.rbegin(); node != before.rend(); ++node) (*node).destroy();
    is_changed_ = true;
  }

  const Graph& graph_;
  script::Writes writes_;  // of the graph before the first change, which adds no writer
  const SeenTensors& seen_;
  std::map<Value, Found> found_;
  std::vector<Node> kept_;  // the last node of each chain
  bool is_changed_ = false;
};

}  // namespace

bool fold_affine(const Graph& graph, const SeenTensors& seen) { return Folder(graph, seen).run(); }

}  // namespace torchalgo

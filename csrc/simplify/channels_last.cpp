// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/channels_last.h"

#include <algorithm>
#include <unordered_map>

#include "torchscript/constants.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Use;
using script::Value;

namespace {

// Their results are images [n, c, h, w] or signals [n, c, w].
constexpr std::array<std::string_view, 7> kOfImages = {
    "aten::batch_norm",          "aten::max_pool2d",         "aten::avg_pool2d",
    "aten::adaptive_avg_pool2d", "aten::upsample_nearest2d", "aten::upsample_bilinear2d",
    "aten::group_norm"};

bool is_dim(const std::optional<double>& number) { return number && *number >= -4 && *number < 4; }

bool is_layer_norm(Node node) {
  if (node.is("torchalgo::channel_norm")) return true;
  const bool is_rms_norm = node.is("aten::rms_norm") && constant_tensor(node.argument("weight")) &&
                           (is_none(node.argument("eps")) || constant_number(node.argument("eps")));
  if (!is_rms_norm && !node.is("aten::layer_norm")) return false;
  const auto sizes = constant_ints(node.input(1));
  return sizes && sizes->size() == 1;
}

// Returns true for a number, and for a constant with one element or one per channel.
bool is_per_channel(Value operand) {
  if (!is_tensor(operand)) return constant_number(operand).has_value();
  const auto constant = constant_tensor(operand);
  if (!constant || constant->dim() > 3) return false;
  return constant->dim() == 0 || constant->numel() == 1 || constant->numel() == constant->size(-1);
}

// Connected parts of the network.
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

class ChannelsLastFinder {
 public:
  ChannelsLastFinder(const Graph& graph, const SeenTensors& seen)
      : graph_(graph), writes_(graph), seen_(seen) {}

  std::unordered_set<Value> find() {
    const std::vector<Node> nodes = graph_.nodes();
    for (const Node node : nodes) note_image(node);
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) note_wanted(*node);
    for (const Node node : nodes) assign_part(node);
    std::unordered_set<int> useful;
    for (const int part : useful_parts_) useful.insert(parts_.find(part));
    std::unordered_set<Value> found;
    for (const auto& [value, part] : part_) {
      if (useful.contains(parts_.find(part))) found.insert(value);
    }
    return found;
  }

 private:
  void note_image(Node node) {
    if (node.output_count() != 1) return;
    const std::vector<Value> sources = sources_of(node);
    const bool keeps = is_elementwise(node) || is_any(node, kArithmetic);
    const bool is_image = is_convolution(node) || is_any(node, kOfImages) ||
                          (keeps && std::any_of(sources.begin(), sources.end(), [&](Value source) {
                             return images_.contains(source);
                           }));
    if (is_image) images_.insert(node.output());
  }

  // Notes tensors that lead to a linear layer, from the end of the graph on.
  void note_wanted(Node node) {
    if (node.output_count() != 1) return;
    const bool leads_there = wanted_.contains(node.output()) && may_start(node);
    if (!leads_there && !is_linear_of_tokens(node)) return;
    for (Value source : sources_of(node)) wanted_.insert(source);
  }

  [[nodiscard]] bool is_linear_of_tokens(Node node) const {
    if (!is_constant_linear(node)) return false;
    const auto rank = rank_of(node.input(0), seen_);
    return rank == 3 || rank == 4;
  }

  // Returns true if a part may begin with this op, whose result leads to a linear layer.
  [[nodiscard]] bool may_start(Node node) const {
    const bool is_known = is_elementwise(node) || is_layer_norm(node) ||
                          (is_any(node, kArithmetic) && can_move_arithmetic_of_tokens(node));
    if (!is_known) return false;
    const std::vector<Value> sources = sources_of(node);
    return std::none_of(sources.begin(), sources.end(),
                        [&](Value source) { return images_.contains(source); }) &&
           can_move(node, sources);
  }

  void assign_part(Node node) {
    if (is_opening(node)) {
      if (!writes_.has(node.output())) part_[node.output()] = parts_.make();
      return;
    }
    const std::vector<Value> sources = sources_of(node);
    int part = -1;
    for (Value source : sources) {
      const auto it = part_.find(source);
      if (it == part_.end()) continue;
      part = part < 0 ? it->second : parts_.join(part, it->second);
    }
    if (part < 0 && starts_part(node, sources)) part = parts_.make();
    if (part < 0 || has_writers(node)) return;
    if (is_closing(node) || is_constant_linear(node)) useful_parts_.push_back(part);
    if (is_closing(node) || !can_move(node, sources)) return;
    for (Value output : node.outputs()) part_[output] = part;
  }

  [[nodiscard]] bool starts_part(Node node, const std::vector<Value>& sources) const {
    if (node.output_count() != 1) return false;
    const bool starts =
        is_linear_of_tokens(node) || (wanted_.contains(node.output()) && may_start(node));
    return starts && std::none_of(sources.begin(), sources.end(),
                                  [&](Value source) { return writes_.has(source); });
  }

  [[nodiscard]] bool has_writers(Node node) const {
    const auto outputs = node.outputs();
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](Value output) { return writes_.has(output); });
  }

  // Returns true if the node can be computed with the channels in dimension 1, given that one of
  // its sources can.
  [[nodiscard]] bool can_move(Node node, const std::vector<Value>& sources) const {
    if (node.is("prim::ListUnpack")) return true;
    const auto rank = sources.empty() ? std::nullopt : rank_of(sources[0], seen_);
    return rank == 3 ? can_move_tokens(node, sources) : can_move_image(node, sources);
  }

  [[nodiscard]] bool can_move_image(Node node, const std::vector<Value>& sources) const {
    if (is_elementwise(node) || is_constant_linear(node) || is_layer_norm(node)) return true;
    if (node.is("aten::contiguous")) return true;
    if (is_any(node, kArithmetic)) return can_move_arithmetic(node, sources);
    if (node.is("aten::cat")) {
      return is_dim(constant_number(node.input(1))) &&
             std::all_of(sources.begin(), sources.end(),
                         [&](Value source) { return rank_of(source, seen_) == 4; });
    }
    if (is_any(node, kOfOneDim)) return is_dim(constant_number(node.argument("dim")));
    if (node.is("aten::mean") && node.has_argument("keepdim")) {
      const auto dims = constant_ints(node.argument("dim"));
      return dims && constant_bool(node.argument("keepdim")) == true &&
             std::all_of(dims->begin(), dims->end(), [](auto d) { return d >= -4 && d < 4; });
    }
    return false;
  }

  [[nodiscard]] bool can_move_arithmetic(Node node, const std::vector<Value>& sources) const {
    if (node.has_argument("rounding_mode") || rank_of(node.output(), seen_) != 4) return false;
    for (Value source : sources) {
      if (rank_of(source, seen_) != 4) return false;
    }
    const auto is_operand = [](Value input) {
      const auto constant = constant_tensor(input);
      return !constant || constant->dim() <= 4;
    };
    return is_operand(node.input(0)) && is_operand(node.input(1));
  }

  // Tokens stay tokens in ops that the planner does not know on images: any op may read them
  // where they are without a copy.
  [[nodiscard]] bool can_move_tokens(Node node, const std::vector<Value>& sources) const {
    const bool are_tokens = std::all_of(sources.begin(), sources.end(),
                                        [&](Value source) { return rank_of(source, seen_) == 3; });
    if (!are_tokens) return false;
    if (is_elementwise(node) || is_constant_linear(node)) return true;
    if (node.is("aten::contiguous")) return true;
    if (is_any(node, kArithmetic)) return can_move_arithmetic_of_tokens(node);
    if (node.is("torchalgo::channel_norm")) return is_last(node.argument("dim"));
    if (is_layer_norm(node)) return constant_tensor(node.argument("weight")).has_value();
    if (node.is("aten::cat")) return is_last(node.input(1));
    return is_any(node, kOfOneDim) && is_last(node.argument("dim")) &&
           are_read_as_tokens(node.outputs());
  }

  static bool is_last(Value dim) {
    const auto number = constant_number(dim);
    return number == -1.0 || number == 2.0;
  }

  [[nodiscard]] bool can_move_arithmetic_of_tokens(Node node) const {
    if (node.has_argument("rounding_mode")) return false;
    if (node.has_argument("alpha") && constant_number(node.argument("alpha")) != 1.0) return false;
    const Value a = node.input(0), b = node.input(1);
    if (is_per_channel(b)) return !is_per_channel(a);
    if (node.is("aten::sub", "aten::div")) return false;
    if (is_per_channel(a)) return true;
    const auto first = seen_.find(a), second = seen_.find(b);
    return first != seen_.end() && second != seen_.end() &&
           first->second.sizes == second->second.sizes &&
           first->second.scalar_type == second->second.scalar_type;
  }

  // A part of the channels is a view of the tokens, but a copy in an image.
  static bool are_read_as_tokens(const std::vector<Value>& parts) {
    return std::all_of(parts.begin(), parts.end(), [](Value part) {
      const auto& uses = part.uses();
      return std::all_of(uses.begin(), uses.end(), [](const Use& use) {
        Node user = use.user;
        if (user.is("prim::ListUnpack")) return are_read_as_tokens(user.outputs());
        return is_elementwise(user) || is_any(user, kArithmetic) || is_constant_linear(user) ||
               is_layer_norm(user) || user.is("aten::size");
      });
    });
  }

  const Graph& graph_;
  script::Writes writes_;
  const SeenTensors& seen_;
  std::unordered_set<Value> images_;  // with their channels in dimension 1 in the model
  std::unordered_set<Value> wanted_;  // these lead to a linear layer
  Parts parts_;
  std::unordered_map<Value, int> part_;  // of each tensor with its channels last
  std::vector<int> useful_parts_;
};

}  // namespace

bool is_opening(Node node) { return is_permute(node, {0, 2, 3, 1}); }
bool is_closing(Node node) { return is_permute(node, {0, 3, 1, 2}); }

std::vector<Value> sources_of(Node node) {
  if (node.is("aten::cat") && is_fixed_list(node.input(0))) {
    const auto items = node.input(0).node().inputs();
    return {items.begin(), items.end()};
  }
  std::vector<Value> sources;
  const bool has_two = is_any(node, kArithmetic);
  for (std::size_t i = 0; i < node.input_count() && i < (has_two ? 2 : 1); ++i) {
    const Value input = node.input(i);
    if (is_tensor(input) && !constant_tensor(input)) sources.push_back(input);
    if (node.is("prim::ListUnpack")) sources.push_back(input);
  }
  return sources;
}

std::unordered_set<Value> find_channels_last(const Graph& graph, const SeenTensors& seen) {
  return ChannelsLastFinder(graph, seen).find();
}

}  // namespace torchalgo

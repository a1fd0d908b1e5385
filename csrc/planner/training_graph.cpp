// SPDX-License-Identifier: BSD-3-Clause
#include "planner/training_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"

namespace torchalgo {
namespace {

using Sizes = std::vector<std::int64_t>;

bool has_weights(const Node& node) { return node.problem && !weight_sizes(*node.problem).empty(); }

// The gradient that goes through the moments is a part of BatchNormStep::kGradient.
bool is_moments(const Node& node) {
  const auto* norm = node.problem ? std::get_if<BatchNormProblem>(&*node.problem) : nullptr;
  return norm != nullptr && norm->step == BatchNormStep::kMoments;
}

bool is_normalization(const Node& node) {
  const auto* norm = node.problem ? std::get_if<BatchNormProblem>(&*node.problem) : nullptr;
  return norm != nullptr && norm->step == BatchNormStep::kNormalize && norm->epilogue.empty();
}

bool applies_activation(const Node& node) {
  const auto* eltwise = node.problem ? std::get_if<EltwiseProblem>(&*node.problem) : nullptr;
  return eltwise != nullptr && eltwise->kind == EltwiseKind::kActivation;
}

// Returns true if a gradient of the node reads the node's input.
bool reads_input_again(const Node& node) {
  if (!node.problem) return false;
  const auto* pool = std::get_if<PoolProblem>(&*node.problem);
  return std::holds_alternative<ConvProblem>(*node.problem) ||
         (pool != nullptr && pool->kind == PoolKind::kMax);
}

// Returns true if the gradients of the inputs read no tensor of the forward pass.
bool is_sum_or_concat(const Problem& problem) {
  const auto* eltwise = std::get_if<EltwiseProblem>(&problem);
  return std::holds_alternative<ConcatProblem>(problem) ||
         (eltwise != nullptr && eltwise->kind == EltwiseKind::kAdd);
}

// Returns true if the gradient at x follows from the activation's result.
bool has_gradient_of_result(const PostOp& op) {
  return op == PostOp::kRelu || op == PostOp::kRelu6 || op.kind == PostOp::kClamp;
}

// Returns an elementwise problem on `value`. It replaces a gradient that has no problem type.
EltwiseProblem eltwise(const Value& value, EltwiseKind kind) {
  EltwiseProblem problem;
  problem.kind = kind;
  problem.dtype = value.dtype.value_or(DType::kF32);
  const Sizes& sizes = value.sizes;
  problem.n = sizes.empty() ? 1 : sizes[0];
  problem.c = sizes.size() > 1 ? sizes[1] : 1;
  if (sizes.size() > 2) problem.w = sizes.back();
  for (std::size_t i = 2; i + 1 < sizes.size(); ++i) problem.h *= sizes[i];
  if (kind == EltwiseKind::kActivation) problem.epilogue = {PostOp::kRelu};
  return problem;
}

class Backward {
 public:
  Backward(const Graph& inference, const std::vector<int>& wanted,
           const std::vector<int>& recomputed)
      : forward_(inference),
        wanted_(wanted),
        graph_(inference),
        readers_(readers_of(inference)),
        kept_(inference.values.size()),
        partial_(inference.values.size()) {
    for (std::size_t v = 0; v < kept_.size(); ++v) kept_[v] = static_cast<int>(v);
    for (const int value : recomputed) {
      kept_[value] = -1;
      const Node& producer = inference.nodes[inference.values[value].producer];
      if (applies_activation(producer)) kept_[producer.inputs[0]] = -1;
    }
    mark_needed();
  }

  Graph build() {
    add_output_gradients();
    for (int n = static_cast<int>(forward_.nodes.size()) - 1; n >= 0; --n) visit(n);
    for (const int input : wanted_) {
      graph_.outputs.push_back(gradient_of(input));
      TORCHALGO_ASSERT(graph_.outputs.back() >= 0);
    }
    check_graph(graph_);
    return std::move(graph_);
  }

 private:
  // A value needs a gradient if weights lie before it.
  void mark_needed() {
    needs_.assign(forward_.values.size(), false);
    for (const int input : wanted_) needs_[input] = true;
    for (const Node& node : forward_.nodes) {
      const bool needs = !is_moments(node) &&
                         (has_weights(node) || std::any_of(node.inputs.begin(), node.inputs.end(),
                                                           [&](int v) { return needs_[v]; }));
      for (const int value : node.outputs) {
        needs_[value] = needs && forward_.values[value].dtype.has_value();
      }
    }
  }

  int add_value(const std::string& name, Sizes sizes, std::optional<DType> dtype, int producer) {
    graph_.values.push_back({name, std::move(sizes), dtype, producer});
    return static_cast<int>(graph_.values.size()) - 1;
  }

  int add_gradient(const std::string& name, int of) {
    const Value& value = forward_.values[of];
    return add_value(name, value.sizes, value.dtype, static_cast<int>(graph_.nodes.size()));
  }

  void add_node(std::string name, std::string kind, std::vector<int> inputs,
                std::vector<int> outputs, std::optional<Problem> problem) {
    graph_.nodes.push_back({std::move(name), std::move(kind), std::move(inputs), std::move(outputs),
                            std::move(problem), ""});
  }

  // Adds the step that computes a part of the gradient of input `of`, if the input needs one.
  void give_step(const Node& node, int of, std::vector<int> reads, const Problem& problem) {
    if (needs_[of]) give(of, add_step(node.name + ".bwd", std::move(reads), of, problem));
  }

  // Adds a node with one result, which is a part of the gradient of `of`. Returns the result.
  int add_step(const std::string& name, std::vector<int> inputs, int of,
               std::optional<Problem> problem) {
    const int result = add_gradient(name, of);
    const std::string kind = name.substr(name.rfind('.') + 1);
    add_node(name, kind, std::move(inputs), {result}, std::move(problem));
    return result;
  }

  // Returns the value that a gradient reads in place of `value` of the forward pass: itself, or
  // what computes it again. The first reader adds these nodes before itself.
  int kept(int value) {
    if (kept_[value] < 0) kept_[value] = compute_again(forward_.values[value].producer);
    return kept_[value];
  }

  // Returns true if `value` is the result of a batch norm that nothing else reads.
  [[nodiscard]] bool is_behind_norm_alone(int value) const {
    const int producer = forward_.values[value].producer;
    return producer >= 0 && is_normalization(forward_.nodes[producer]) &&
           readers_[value].size() == 1 &&
           std::count(forward_.outputs.begin(), forward_.outputs.end(), value) == 0;
  }

  int compute_again(int producer) {
    const Node& node = forward_.nodes[producer];
    std::vector<int> reads;
    for (const int value : node.inputs) reads.push_back(kept(value));
    return add_step(node.name + ".bwd_again", std::move(reads), node.outputs[0], node.problem);
  }

  void add_output_gradients() {
    std::vector<int> outputs = forward_.outputs;
    std::sort(outputs.begin(), outputs.end());
    outputs.erase(std::unique(outputs.begin(), outputs.end()), outputs.end());
    for (const int output : outputs) {
      if (!needs_[output]) continue;
      const Value& value = forward_.values[output];
      graph_.inputs.push_back(add_value(value.name + ".grad", value.sizes, value.dtype, -1));
      graph_.input_layouts.push_back(Layout::kNchw);
      partial_[output].push_back(graph_.inputs.back());
    }
  }

  void give(int value, int gradient) {
    if (needs_[value]) partial_[value].push_back(gradient);
  }

  // If the slices of a value cover it once, its gradient is the concatenation of theirs. Otherwise
  // each gets a step that no primitive can run, see training_graph.h.
  void join_slices(int value) {
    std::vector<Slice> slices = std::move(slices_[value]);
    slices_[value].clear();
    if (slices.empty()) return;
    std::sort(slices.begin(), slices.end(),
              [](const Slice& a, const Slice& b) { return a.problem.begin < b.problem.begin; });
    const SliceProblem& first = slices[0].problem;
    ConcatProblem joined{first.dtype, first.n, first.h, first.w, {}};
    std::vector<int> gradients;
    std::int64_t end = 0;
    for (const Slice& slice : slices) {
      if (slice.problem.begin != end) break;
      end += slice.problem.k;
      joined.c.push_back(slice.problem.k);
      gradients.push_back(slice.gradient);
    }
    const std::string& name = forward_.values[value].name;
    if (gradients.size() == slices.size() && end == first.c) {
      return give(value, add_step(name + ".bwd_slices", std::move(gradients), value, joined));
    }
    const EltwiseProblem like = eltwise(forward_.values[value], EltwiseKind::kActivation);
    for (std::size_t i = 0; i < slices.size(); ++i) {
      give(value,
           add_step(fmt::format("{}.bwd_slice{}", name, i), {slices[i].gradient}, value, like));
    }
  }

  // Returns the gradient of `value`, the sum of all parts, or -1 if there is none.
  int gradient_of(int value) {
    join_slices(value);
    const std::vector<int>& parts = partial_[value];
    if (parts.empty()) return -1;
    int sum = parts[0];
    for (std::size_t i = 1; i < parts.size(); ++i) {
      sum = add_step(fmt::format("{}.bwd_sum{}.add", forward_.values[value].name, i),
                     {sum, parts[i]}, value, eltwise(forward_.values[value], EltwiseKind::kAdd));
    }
    partial_[value] = {sum};
    return sum;
  }

  void visit(int index) {
    const Node& node = forward_.nodes[index];
    if (!node.problem) return visit_opaque(node);
    const auto* conv = std::get_if<ConvProblem>(&*node.problem);
    // There is no problem for the gradients of a convolution with uneven padding.
    if (conv != nullptr && !is_padded_evenly(*conv)) return visit_opaque(node);
    if (node.outputs.size() != 1) return;
    const int result = node.outputs[0];
    if (!needs_[result]) return;
    const int gradient = gradient_of(result);
    if (gradient < 0) return;
    std::visit([&](const auto& problem) { differentiate(node, problem, gradient); }, *node.problem);
  }

  // Adds one opaque op with all gradients in nchw.
  void visit_opaque(const Node& node) {
    std::vector<int> inputs, outputs, wanted;
    for (const int value : node.outputs) {
      const int gradient = needs_[value] ? gradient_of(value) : -1;
      if (gradient >= 0) inputs.push_back(gradient);
    }
    if (inputs.empty()) return;
    for (const int value : node.inputs) {
      if (needs_[value] && std::count(wanted.begin(), wanted.end(), value) == 0)
        wanted.push_back(value);
    }
    if (wanted.empty()) return;
    inputs.insert(inputs.end(), node.inputs.begin(), node.inputs.end());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      outputs.push_back(add_gradient(fmt::format("{}.bwd{}", node.name, i), wanted[i]));
      give(wanted[i], outputs.back());
    }
    add_node(node.name + ".bwd", node.kind, std::move(inputs), std::move(outputs), std::nullopt);
  }

  // Returns the gradient before the epilogue. The gradient of a residual is that of the sum.
  int before_epilogue(const Node& node, const Epilogue& epilogue, int gradient) {
    for (auto op = epilogue.rbegin(); op != epilogue.rend(); ++op) {
      if (is_activation(*op)) {
        gradient = add_step(node.name + ".bwd_act", {gradient, kept(node.outputs[0])},
                            node.outputs[0], activation_gradient(*op, node.outputs[0]));
      } else if (*op == PostOp::kAdd) {
        give(node.inputs.back(), gradient);
      }
    }
    return gradient;
  }

  [[nodiscard]] Problem activation_gradient(const PostOp& activation, int of) const {
    const EltwiseProblem like = eltwise(forward_.values[of], EltwiseKind::kMul);
    return ActivationGradientProblem{activation, like.dtype, like.n, like.c, like.h, like.w};
  }

  // Adds an elementwise node from the result's gradient, and perhaps a saved tensor, to the
  // gradient of input `of`. If `channelwise` is true, the saved tensor is [n, c, 1, 1].
  void pass(const Node& node, int of, std::vector<int> reads, bool channelwise = false) {
    if (!needs_[of]) return;
    const EltwiseKind kind = reads.size() > 1 ? EltwiseKind::kMul : EltwiseKind::kActivation;
    EltwiseProblem problem = eltwise(forward_.values[of], kind);
    problem.channelwise = channelwise;
    std::string name = node.name + ".bwd";
    if (node.inputs.size() > 1 && of != node.inputs[0]) name += "_second";
    give(of, add_step(name, std::move(reads), of, problem));
  }

  void differentiate(const Node& node, const ConvProblem& conv, int gradient) {
    gradient = before_epilogue(node, conv.epilogue, gradient);
    ConvProblem problem = conv;
    problem.epilogue.clear();
    const bool is_transposed = conv.direction == Direction::kBackwardData;
    const int src = node.inputs[0];
    problem.direction = Direction::kBackwardFilter;
    // A transposed convolution reads the tensor that is dst in the problem's sizes, and writes the
    // one that is src.
    const int saved = kept(src);
    const std::vector<int> reads =
        is_transposed ? std::vector{gradient, saved} : std::vector{saved, gradient};
    // A tf32 problem has f32 tensors.
    const int weights =
        add_value(node.name + ".bwd_filter", weight_sizes(problem), graph_.values[gradient].dtype,
                  static_cast<int>(graph_.nodes.size()));
    add_node(node.name + ".bwd_filter", "bwd_filter", reads, {weights}, problem);
    graph_.outputs.push_back(weights);
    if (has(conv.epilogue, PostOp::kBias)) add_bias_gradient(node, gradient);
    if (!needs_[src]) return;
    problem.direction = is_transposed ? Direction::kForward : Direction::kBackwardData;
    give(src, add_step(node.name + ".bwd_data", {gradient}, src, problem));
  }

  void add_bias_gradient(const Node& node, int gradient) {
    const EltwiseProblem like = eltwise(graph_.values[gradient], EltwiseKind::kMul);
    const int sums = add_value(node.name + ".bwd_bias", {1, like.c, 1, 1}, like.dtype,
                               static_cast<int>(graph_.nodes.size()));
    add_node(node.name + ".bwd_bias", "bwd_bias", {gradient}, {sums},
             ChannelSumsProblem{like.dtype, like.n, like.c, like.h, like.w});
    graph_.outputs.push_back(sums);
  }

  void differentiate(const Node& node, const LinearProblem& linear, int gradient) {
    gradient = before_epilogue(node, linear.epilogue, gradient);
    const LinearProblem weights{linear.dtype, linear.k, linear.n, linear.c, {}};  // [k, n] * [n, c]
    const int src = kept(node.inputs[0]);                                         // may add nodes
    const int result = add_value(node.name + ".bwd_filter", {linear.k, linear.c}, linear.dtype,
                                 static_cast<int>(graph_.nodes.size()));
    add_node(node.name + ".bwd_filter", "bwd_filter", {gradient, src}, {result}, weights);
    graph_.outputs.push_back(result);
    if (!needs_[node.inputs[0]]) return;
    const LinearProblem data{linear.dtype, linear.n, linear.k, linear.c, {}};
    give(node.inputs[0], add_step(node.name + ".bwd_data", {gradient}, node.inputs[0], data));
  }

  void differentiate(const Node& node, const EltwiseProblem& problem, int gradient) {
    const int a = node.inputs[0];
    if (problem.kind == EltwiseKind::kActivation) {
      const PostOp& activation = problem.epilogue[0];
      if (is_behind_norm_alone(a) && has_gradient_of_result(activation)) {
        behind_norm_.emplace(a, activation);  // a part of the batch norm's gradient
        return give(a, gradient);
      }
      const int saved = has_gradient_of_result(activation) ? node.outputs[0] : a;
      if (!needs_[a]) return;
      return give_step(node, a, {gradient, kept(saved)}, activation_gradient(activation, a));
    }
    gradient = before_epilogue(node, problem.epilogue, gradient);
    const int b = node.inputs[1];
    if (problem.kind == EltwiseKind::kSub) {
      give(a, gradient);
      return pass(node, b, {gradient});  // its negative, an elementwise step of one input
    }
    if (problem.kind == EltwiseKind::kAdd && !problem.channelwise) {
      give(a, gradient);
      give(b, gradient);
      return;
    }
    if (problem.kind == EltwiseKind::kAdd) {
      give(a, gradient);
    } else {
      pass(node, a, {gradient, b}, problem.channelwise);
    }
    if (!problem.channelwise) return b == a ? give_twice(a) : pass(node, b, {gradient, a});
    give_channel_sums(node, problem, gradient);
  }

  // Handles x * x, where the second gradient equals the first.
  void give_twice(int value) {
    if (needs_[value]) give(value, partial_[value].back());
  }

  // Gives the second input, [n, c, 1, 1], the sums of the gradient over h and w. For a product,
  // the terms of the sums are products with the first input.
  void give_channel_sums(const Node& node, const EltwiseProblem& problem, int gradient) {
    const int a = node.inputs[0], b = node.inputs[1];
    if (!needs_[b]) return;
    const bool has_product = problem.kind == EltwiseKind::kMul;
    const std::vector<int> reads = has_product ? std::vector{gradient, a} : std::vector{gradient};
    ChannelSumsProblem sums{problem.dtype, problem.n, problem.c, problem.h, problem.w};
    sums.per_image = true;
    sums.has_product = has_product;
    give(b, add_step(node.name + ".bwd_second", reads, b, sums));
  }

  void differentiate(const Node& node, const ScaleShiftProblem& problem, int gradient) {
    gradient = before_epilogue(node, problem.epilogue, gradient);
    pass(node, node.inputs[0], {gradient, node.inputs[0]});
  }

  void differentiate(const Node& node, const LayerNormProblem&, int gradient) {
    pass(node, node.inputs[0], {gradient, node.inputs[0]});
  }

  void differentiate(const Node& node, const GroupNormProblem& problem, int gradient) {
    gradient = before_epilogue(node, problem.epilogue, gradient);
    pass(node, node.inputs[0], {gradient, node.inputs[0]});
  }

  void differentiate(const Node& node, const PoolProblem& problem, int gradient) {
    std::vector<int> reads = {gradient};
    if (!needs_[node.inputs[0]]) return;
    if (problem.kind == PoolKind::kMax) reads.push_back(kept(node.inputs[0]));
    give_step(node, node.inputs[0], std::move(reads), PoolGradientProblem{problem});
  }

  void differentiate(const Node& node, const BatchNormProblem& problem, int gradient) {
    if (problem.step == BatchNormStep::kMoments) return;
    TORCHALGO_ASSERT(problem.step == BatchNormStep::kNormalize);
    gradient = before_epilogue(node, problem.epilogue, gradient);
    const int x = node.inputs[0], moments = node.inputs[1];
    BatchNormProblem step = problem;
    step.epilogue.clear();
    const auto behind = behind_norm_.find(node.outputs[0]);
    if (behind != behind_norm_.end()) step.activation = behind->second;
    step.step = BatchNormStep::kGradientSums;
    const int sums = add_step(node.name + ".bwd_sums", {gradient, x, moments}, moments, step);
    graph_.outputs.push_back(sums);
    step.step = BatchNormStep::kGradient;
    give_step(node, x, {gradient, x, moments, sums}, step);
  }

  void differentiate(const Node& node, const ResizeProblem&, int gradient) {
    pass(node, node.inputs[0], {gradient});
  }

  void differentiate(const Node& node, const SliceProblem& slice, int gradient) {
    if (needs_[node.inputs[0]]) slices_[node.inputs[0]].push_back({slice, gradient});
  }

  void differentiate(const Node& node, const ShuffleProblem& shuffle, int gradient) {
    ShuffleProblem back = shuffle;
    back.groups = shuffle.c / shuffle.groups;
    if (back.groups == 1) return give(node.inputs[0], gradient);  // it moves no channel
    give_step(node, node.inputs[0], {gradient}, back);
  }

  void differentiate(const Node& node, const ConcatProblem& problem, int gradient) {
    const auto& whole = forward_.values[node.outputs[0]];
    SliceProblem slice;
    slice.dtype = problem.dtype;
    slice.n = problem.n, slice.c = whole.sizes[1], slice.h = problem.h, slice.w = problem.w;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      slice.k = problem.c[i];
      const int of = node.inputs[i];
      const std::string name = fmt::format("{}.bwd_slice{}", node.name, i);
      if (needs_[of]) give(of, add_step(name, {gradient}, of, slice));
      slice.begin += slice.k;
    }
  }

  // PyTorch computes the gradients of other kinds of operations.
  void differentiate(const Node& node, const auto&, int) { visit_opaque(node); }

  struct Slice {
    SliceProblem problem;
    int gradient;
  };

  const Graph& forward_;
  const std::vector<int>& wanted_;
  Graph graph_;
  const std::vector<std::vector<int>> readers_;  // per value of the forward pass
  std::map<int, PostOp> behind_norm_;  // the activation behind a batch norm, per result of the norm
  std::vector<int> kept_;              // per value of the forward pass; -1: not computed yet
  std::vector<bool> needs_;            // per value of the forward pass
  std::vector<std::vector<int>> partial_;  // per value of the forward pass: gradients to be added
  std::map<int, std::vector<Slice>> slices_;  // per value: those whose gradients it has not yet
};

}  // namespace

Graph training_graph(const Graph& inference, const std::vector<int>& wanted,
                     const std::vector<int>& recomputed) {
  return Backward(inference, wanted, recomputed).build();
}

std::vector<int> recomputable_values(const Graph& inference) {
  const std::vector<std::vector<int>> readers = readers_of(inference);
  const auto is_output = [&](int value) {
    return std::count(inference.outputs.begin(), inference.outputs.end(), value) > 0;
  };
  std::vector<int> found;
  for (const Node& node : inference.nodes) {
    if (!is_normalization(node)) continue;
    int result = node.outputs[0];
    if (is_output(result)) continue;
    const std::vector<int>& first = readers[result];
    bool is_read = false;
    if (first.size() == 1 && applies_activation(inference.nodes[first[0]])) {
      const Node& activation = inference.nodes[first[0]];
      result = activation.outputs[0];
      is_read = !has_gradient_of_result(epilogue_of(*activation.problem)[0]);
    }
    const std::vector<int>& own = readers[result];
    is_read = is_read || std::any_of(own.begin(), own.end(),
                                     [&](int n) { return reads_input_again(inference.nodes[n]); });
    const bool is_known = std::all_of(own.begin(), own.end(), [&](int n) {
      const Node& reader = inference.nodes[n];
      return reads_input_again(reader) || (reader.problem && is_sum_or_concat(*reader.problem));
    });
    if (is_read && is_known && !is_output(result)) found.push_back(result);
  }
  return found;
}

}  // namespace torchalgo

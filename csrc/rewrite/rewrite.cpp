// SPDX-License-Identifier: BSD-3-Clause
#include "rewrite/rewrite.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "import/computed_size.h"
#include "import/read_layer.h"
#include "import/shape_query.h"
#include "ir/view.h"
#include "rewrite/concat_slots.h"
#include "rewrite/plan_fit.h"
#include "torchscript/own_unit.h"

namespace torchalgo {

using torch::jit::Module;
using torch::jit::WithInsertPoint;

namespace {

using JitBlock = torch::jit::Block;
using JitGraph = torch::jit::Graph;
using JitNode = torch::jit::Node;
using JitValue = torch::jit::Value;

// The nodes and values of a copy, by those of the original graph.
struct Copied {
  std::unordered_map<const JitNode*, JitNode*> nodes;
  std::unordered_map<const JitValue*, JitValue*> values;
};

Copied match_copy(JitGraph& original, JitGraph& copy) {
  Copied copied;
  const auto match_values = [&](auto from, auto to) {
    TORCHALGO_ASSERT(from.size() == to.size());
    for (std::size_t i = 0; i < from.size(); ++i) copied.values[from[i]] = to[i];
  };
  match_values(original.inputs(), copy.inputs());
  auto it = copy.nodes().begin();
  for (JitNode* node : original.nodes()) {
    TORCHALGO_ASSERT(it != copy.nodes().end() && it->kind() == node->kind());
    copied.nodes[node] = *it;
    match_values(node->outputs(), it->outputs());
    ++it;
  }
  return copied;
}

// On strided tensors the model's own op computes the same as ATen's algorithm, without a call in
// between. A convolution is always replaced, so that the graph shows the choice. A slice is
// replaced too, because a part of a chunk is valid for the planned channels only.
bool is_own_op(const PlannedCall& call) {
  return call.covers.size() == 1 && !is_convolution(call.problem) &&
         !std::holds_alternative<SliceProblem>(call.problem) &&
         call.primitive.name.starts_with("aten.") && call.primitive.src == Layout::kNchw &&
         call.primitive.dst == Layout::kNchw;
}

// Returns true for the operations whose result may have a size that the graph computes.
bool takes_size(const Problem& problem) {
  return std::holds_alternative<ResizeProblem>(problem) ||
         std::holds_alternative<PoolProblem>(problem);
}

using LayerTensors = c10::List<std::optional<at::Tensor>>;

void add_tensor(LayerTensors& tensors, const at::Tensor& tensor) {
  tensors.push_back(tensor.defined() ? std::optional(tensor) : std::nullopt);
}

// A chain with a second input takes a list, as other ops do.
bool runs_as_conv(const Problem& problem) {
  const std::size_t residual = has(epilogue_of(problem), PostOp::kAdd) ? 1 : 0;
  return is_convolution(problem) && input_sizes(problem).size() == 1 + residual;
}

// The op objects are made through the dispatcher: this folder does not depend on csrc/ops.
c10::IValue pack(const Problem& problem, const Primitive& primitive, const std::string& layer,
                 const LayerTensors& weights) {
  const char* op = runs_as_conv(problem) ? "torchalgo::pack_conv" : "torchalgo::pack_op";
  torch::jit::Stack stack = {to_string(problem),
                             primitive.name,
                             std::string(to_string(primitive.src)),
                             std::string(to_string(primitive.dst)),
                             layer,
                             weights};
  c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(&stack);
  TORCHALGO_ASSERT(stack.size() == 1);
  return stack[0];
}

class Rewriter {
 public:
  Rewriter(const ImportedGraph& imported, const Plan& plan)
      : graph_(imported.graph),
        knows_layouts_(plan.structure_version >= kFirstWithLayouts),
        plan_(fit_plan(imported.graph, plan)),
        slots_(concat_slots(imported.graph, plan_)),
        buffers_(slots_.buffers.size(), nullptr),
        module_(with_own_unit(imported.module).clone()),
        jit_(module_.get_method("forward").graph()),
        versions_(imported.graph.values.size()) {
    const Copied copied = match_copy(*imported.module.get_method("forward").graph(), *jit_);
    for (std::size_t n = 0; n < imported.nodes.size(); ++n) {
      nodes_.push_back(copied.nodes.at(imported.nodes[n]));
      index_of_node_[nodes_.back()] = static_cast<int>(n);
      for (JitNode* inner : imported.inner[n])
        index_of_node_[copied.nodes.at(inner)] = static_cast<int>(n);
    }
    for (std::size_t v = 0; v < imported.values.size(); ++v) {
      values_.push_back(copied.values.at(imported.values[v]));
      index_of_value_[values_.back()] = static_cast<int>(v);
    }
  }

  Rewritten rewrite() {
    // New ops are put between the nodes, so these are listed first.
    const std::vector<JitNode*> order(jit_->nodes().begin(), jit_->nodes().end());
    for (std::size_t i = 0; i < graph_.inputs.size(); ++i) {
      const int value = graph_.inputs[i];
      const WithInsertPoint at(*jit_->nodes().begin());
      add_version(value, graph_.input_layouts[i], values_[value]);
    }
    for (JitNode* node : order) rewrite_node(node);
    read_strided(jit_->return_node());
    torch::jit::EliminateDeadCode(jit_);
    check_replaced();
    jit_->lint();
    return {module_, origins()};
  }

 private:
  void rewrite_node(JitNode* node) {
    const auto it = index_of_node_.find(node);
    if (it == index_of_node_.end()) return keep(node);
    const Node& known = graph_.nodes[it->second];
    if (known.reads_shape_only) return ask_shape(node);
    if (!plan_.is_planned[it->second]) {
      return knows_layouts_ ? keep(node, known.reads, known.makes) : keep(node);
    }
    const auto& call = plan_.call_at[it->second];
    if (!call) return;  // absorbed by a later call
    if (std::holds_alternative<AttentionProblem>(call->problem)) {
      name_primitive(node, call->primitive);
      return keep(node);
    }
    if (is_own_op(*call)) return keep(node);
    if (node != nodes_[it->second]) return;  // an inner node, whose work a later one includes
    const WithInsertPoint at(node);
    JitNode* made = runs_as_conv(call->problem)           ? make_conv(*call)
                    : call->primitive.name == kViewConcat ? make_join(*call)
                    : call->primitive.name == kViewSlice  ? make_slice(*call)
                                                          : make_op(*call);
    made->copyMetadata(nodes_[call->covers[0]]);
    add_version(call->dst, result_layout(call->problem, call->primitive), made->output());
    for (const int covered : call->covers) replaced_.insert(nodes_[covered]);
  }

  // A node that is not replaced reads and makes strided tensors.
  void keep(JitNode* node, Layout reads = Layout::kNchw, Layout makes = Layout::kNchw) {
    read_strided(node, reads);
    const WithInsertPoint after(node->next());
    for (JitValue* output : node->outputs()) {
      const auto value = index_of_value_.find(output);
      if (value != index_of_value_.end()) add_version(value->second, makes, output);
    }
  }

  // The op of an attention takes tensors of any strides, so it stays, with the chosen name.
  void name_primitive(JitNode* node, const Primitive& primitive) {
    const WithInsertPoint at(node);
    node->replaceInputWith(node->namedInput("primitive"), jit_->insertConstant(primitive.name));
  }

  // A query of the shape takes the tensor in any layout in which it exists.
  void ask_shape(JitNode* node) {
    const int value = index_of_value_.at(node->input(0));
    const auto& versions = versions_[value];
    const bool asks_type = node->kind() == torch::jit::prim::dtype;
    const auto strided = std::find_if(versions.begin(), versions.end(), [&](const auto& version) {
      return !is_blocked(version.first) && !(asks_type && is_typed(version.first));
    });
    if (strided != versions.end()) {
      node->replaceInput(0, strided->second);
      return;
    }
    TORCHALGO_CHECK(!versions.empty(),
                    "TA2202 rewrite_graph: no entry of the plan makes {}, whose shape {} reads",
                    graph_.values[value].name, node->kind().toQualString());
    if (asks_type) {  // only a model in f32 has tensors in a coarser type
      TORCHALGO_ASSERT(graph_.values[value].dtype == DType::kF32);
      const WithInsertPoint at(node);
      const auto f32 = static_cast<std::int64_t>(at::kFloat);
      node->output()->replaceAllUsesWith(jit_->insertConstant(f32));
      return;
    }
    JitValue* answer =
        answer_shape_query(node, versions.begin()->second, graph_.values[value].sizes.at(1));
    node->output()->replaceAllUsesWith(answer);
  }

  void read_strided(JitNode* node, Layout layout = Layout::kNchw) {
    for (std::size_t i = 0; i < node->inputs().size(); ++i) {
      const auto value = index_of_value_.find(node->input(i));
      if (value == index_of_value_.end()) continue;
      const auto& versions = versions_[value->second];
      const auto strided = versions.find(layout);
      // A list that only a planned concat reads is removed with it.
      if (strided == versions.end() && node->kind() == torch::jit::prim::ListConstruct) continue;
      TORCHALGO_CHECK(strided != versions.end(),
                      "TA2202 rewrite_graph: no entry of the plan makes {} in {}, which {} reads",
                      graph_.values[value->second].name, to_string(layout),
                      node->kind().toQualString());
      node->replaceInput(i, strided->second);
    }
    for (JitBlock* block : node->blocks()) {
      for (JitNode* inner : block->nodes()) read_strided(inner);
      read_strided(block->return_node());
    }
  }

  [[nodiscard]] JitValue* version(int value, Layout layout, const PlannedCall& call) const {
    const auto it = versions_[value].find(layout);
    TORCHALGO_CHECK(it != versions_[value].end(),
                    "TA2202 rewrite_graph: {} reads {} in {}, which no entry of the plan makes",
                    call.name, graph_.values[value].name, to_string(layout));
    return it->second;
  }

  // Each transform follows the node whose result it reads. All readers share it.
  void add_version(int value, Layout layout, JitValue* made) {
    versions_[value][layout] = made;
    for (const PlanTransform& transform : plan_.transforms[value]) {
      const auto from = versions_[value].find(transform.primitive.src);
      TORCHALGO_CHECK(
          from != versions_[value].end(),
          "TA2202 rewrite_graph: {} converts {} from {}, which no entry of the plan makes",
          transform.problem, transform.value, to_string(transform.primitive.src));
      JitNode* node = make_transform(value, from->second, transform);
      versions_[value][transform.primitive.dst] = node->output();
    }
  }

  JitNode* make_transform(int value, JitValue* src, const PlanTransform& transform) {
    std::vector<JitValue*> inputs = {src, nullptr};
    const Primitive& primitive = transform.primitive;
    const char* op = primitive.name == kViewRelabel                ? "torchalgo::relabel"
                     : add_slot(value, primitive.dst, src, inputs) ? "torchalgo::transform_out"
                                                                   : "torchalgo::transform";
    return make_call(op, std::move(inputs), parse_problem(transform.problem), primitive,
                     transform.value, no_weights());
  }

  JitNode* make_conv(const PlannedCall& call) {
    const Layout dst = result_layout(call.problem, call.primitive);
    JitValue* src = version(call.src.at(0), input_layout(call.problem, call.primitive), call);
    std::vector<JitValue*> inputs = {src, nullptr};
    inputs.push_back(call.residual ? version(*call.residual, dst, call)
                                   : jit_->insertConstant(c10::IValue()));
    const bool has_slot = add_slot(call.dst, dst, src, inputs);
    return make_call(has_slot ? "torchalgo::run_conv_out" : "torchalgo::run_conv",
                     std::move(inputs), call.problem, call.primitive, call.name,
                     weights_of_call(call));
  }

  JitNode* make_op(const PlannedCall& call) {
    if (takes_size(call.problem)) {
      const JitValue* size = computed_size(nodes_[call.covers[0]]);
      if (size != nullptr) return make_sized(call, size);
    }
    const std::vector<JitValue*> src = sources_of(call);
    std::vector<JitValue*> inputs = {insert_list(src), nullptr};
    const bool has_slot =
        add_slot(call.dst, result_layout(call.problem, call.primitive), src.at(0), inputs);
    return make_call(has_slot ? "torchalgo::run_op_out" : "torchalgo::run_op", std::move(inputs),
                     call.problem, call.primitive, call.name, weights_of_call(call));
  }

  // The graph may compute one number for both the height and the width.
  JitNode* make_sized(const PlannedCall& call, const JitValue* computed) {
    JitValue* src = sources_of(call).at(0);
    auto* size = const_cast<JitValue*>(computed);
    if (*size->type() == *c10::IntType::get()) {
      size = jit_->insertNode(jit_->createList(c10::IntType::get(), {size, size}))->output();
    }
    std::vector<JitValue*> inputs = {src, nullptr, size};
    const bool has_slot =
        add_slot(call.dst, result_layout(call.problem, call.primitive), src, inputs);
    return make_call(has_slot ? "torchalgo::run_sized_out" : "torchalgo::run_sized",
                     std::move(inputs), call.problem, call.primitive, call.name, no_weights());
  }

  static LayerTensors no_weights() { return LayerTensors({std::nullopt, std::nullopt}); }

  // Weights and bias of each layer in turn.
  [[nodiscard]] LayerTensors weights_of_call(const PlannedCall& call) const {
    LayerTensors tensors;
    for (const int node : call.covers) {
      const bool is_layer = node == call.covers[0] || is_convolution(*graph_.nodes[node].problem);
      if (!is_layer) continue;
      const OpWeights own = weights_of(nodes_[node], *graph_.nodes[node].problem);
      add_tensor(tensors, own.weights);
      add_tensor(tensors, own.bias);
    }
    return tensors;
  }

  JitNode* make_join(const PlannedCall& call) {
    const std::vector<JitValue*> parts = sources_of(call);
    const auto it = slots_.buffer_of.find(call.covers[0]);
    JitValue* buffer = it == slots_.buffer_of.end() ? nullptr : buffers_[it->second];
    if (buffer == nullptr) buffer = parts.at(0);  // no frame: the concat copies
    return make_call("torchalgo::join", {insert_list(parts), nullptr, buffer}, call.problem,
                     call.primitive, call.name, no_weights());
  }

  JitNode* make_slice(const PlannedCall& call) {
    return make_call("torchalgo::slice", {sources_of(call).at(0), nullptr}, call.problem,
                     call.primitive, call.name, no_weights());
  }

  [[nodiscard]] std::vector<JitValue*> sources_of(const PlannedCall& call) const {
    std::vector<JitValue*> src;
    for (const int value : call.src)
      src.push_back(version(value, input_layout(call.problem, call.primitive), call));
    if (call.residual)
      src.push_back(version(*call.residual, result_layout(call.problem, call.primitive), call));
    return src;
  }

  JitValue* insert_list(const std::vector<JitValue*>& tensors) {
    return jit_->insertNode(jit_->createList(c10::TensorType::get(), tensors))->output();
  }

  // Adds the buffer and the channel at which to write a value in a layout, if it has a part of a
  // concatenation's memory; the buffer is made before its first writer, on the device of `src`.
  bool add_slot(int value, Layout layout, JitValue* src, std::vector<JitValue*>& inputs) {
    const auto part = slots_.of_value.find({value, layout});
    if (part == slots_.of_value.end()) return false;
    JitValue*& buffer = buffers_[part->second.buffer];
    if (buffer == nullptr) {
      JitValue* sizes = jit_->insertConstant(slots_.buffers[part->second.buffer]);
      buffer = jit_->insert(c10::Symbol::fromQualString("torchalgo::new_buffer"), {src, sizes});
    }
    inputs.push_back(buffer);
    inputs.push_back(jit_->insertConstant(part->second.channel));
    return true;
  }

  // op(inputs[0], packed, inputs[2]..., primitive, layer)
  JitNode* make_call(const char* op, std::vector<JitValue*> inputs, const Problem& problem,
                     const Primitive& primitive, const std::string& layer,
                     const LayerTensors& weights) {
    inputs.resize(std::max<std::size_t>(inputs.size(), 2));
    inputs[1] = add_attribute(pack(problem, primitive, layer, weights));
    inputs.push_back(jit_->insertConstant(primitive.name));
    inputs.push_back(jit_->insertConstant(layer));
    JitNode* node = jit_->insertNode(jit_->create(c10::Symbol::fromQualString(op), inputs));
    TORCHALGO_ASSERT(node->maybeOperator() != nullptr);
    return node;
  }

  JitValue* add_attribute(const c10::IValue& packed) {
    std::string name;
    do {
      name = fmt::format("_torchalgo_{}", attribute_count_++);
    } while (module_.hasattr(name));
    module_.register_attribute(name, packed.type(), packed);
    JitNode* get = jit_->insertNode(jit_->createGetAttr(jit_->inputs()[0], name));
    return get->output()->setType(packed.type());
  }

  [[nodiscard]] std::vector<int> origins() const {
    std::vector<int> origins;
    for (const JitNode* node : jit_->nodes()) {
      const auto it = index_of_node_.find(node);
      origins.push_back(it == index_of_node_.end() ? -1 : it->second);
    }
    return origins;
  }

  void check_replaced() const {
    for (const JitNode* node : jit_->nodes()) TORCHALGO_ASSERT(!replaced_.contains(node));
  }

  const Graph& graph_;
  const bool knows_layouts_;  // older plans read and make nchw around each op that they do not plan
  const FittedPlan plan_;
  const ConcatSlots slots_;
  std::vector<JitValue*> buffers_;  // by buffer of slots_; null: not made yet
  Module module_;
  std::shared_ptr<JitGraph> jit_;
  std::vector<JitNode*> nodes_;                            // by node of graph_
  std::vector<JitValue*> values_;                          // by value of graph_
  std::unordered_map<const JitNode*, int> index_of_node_;  // for inner nodes, that of their owner
  std::unordered_map<const JitValue*, int> index_of_value_;
  std::vector<std::map<Layout, JitValue*>> versions_;  // by value: in which layouts it lies where
  std::unordered_set<const JitNode*> replaced_;
  int attribute_count_ = 0;
};

}  // namespace

Rewritten rewrite_graph(const ImportedGraph& imported, const Plan& plan) {
  return Rewriter(imported, plan).rewrite();
}

}  // namespace torchalgo

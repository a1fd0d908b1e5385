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
#include "planner/lower.h"
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
bool is_own_op(const Schedule::Step& step) {
  return step.covers.size() == 1 && !is_convolution(*step.problem) &&
         !std::holds_alternative<SliceProblem>(*step.problem) &&
         step.primitive.name.starts_with("aten.") && step.primitive.src == Layout::kNchw &&
         step.primitive.dst == Layout::kNchw;
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
        schedule_(lower(imported.graph, plan)),
        buffers_(schedule_.buffers.size(), nullptr),
        module_(with_own_unit(imported.module).clone()),
        jit_(module_.get_method("forward").graph()),
        step_at_(graph_.nodes.size(), nullptr),
        changes_of_(graph_.values.size()),
        made_(graph_.values.size()) {
    for (const Schedule::Step& step : schedule_.steps) {
      if (is_layout_change(step))
        changes_of_[slot(step.src[0]).value].push_back(&step);
      else
        step_at_[step.covers.back()] = &step;
    }
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
    for (const int input : schedule_.inputs) {
      const WithInsertPoint at(*jit_->nodes().begin());
      add(slot(input), values_[slot(input).value]);
    }
    for (JitNode* node : order) rewrite_node(node);
    read_in(Layout::kNchw, jit_->return_node());
    torch::jit::EliminateDeadCode(jit_);
    check_replaced();
    jit_->lint();
    return {module_, origins()};
  }

 private:
  [[nodiscard]] const Schedule::Slot& slot(int index) const { return schedule_.slots[index]; }

  void rewrite_node(JitNode* node) {
    const auto it = index_of_node_.find(node);
    if (it == index_of_node_.end()) return keep(node);
    const Schedule::Step* const step = step_at_[it->second];
    if (step == nullptr) return;  // a later step computes it
    if (!step->problem) {
      if (graph_.nodes[it->second].reads_shape_only) return ask_shape(node, slot(step->src.at(0)));
      return keep(node, step);
    }
    if (std::holds_alternative<AttentionProblem>(*step->problem)) {
      name_primitive(node, step->primitive);
      return keep(node);
    }
    if (is_own_op(*step)) return keep(node);
    if (node != nodes_[it->second]) return;  // an inner node, whose work a later one includes
    const WithInsertPoint at(node);
    JitNode* const made = make_call(*step);
    made->copyMetadata(nodes_[step->covers[0]]);
    add(slot(step->dst[0]), made->output());
    for (const int covered : step->covers) replaced_.insert(nodes_[covered]);
  }

  // A node that is not replaced reads and makes strided tensors.
  void keep(JitNode* node, const Schedule::Step* step = nullptr) {
    const auto layout_of = [&](const std::vector<int>& slots) {
      return slots.empty() ? Layout::kNchw : slot(slots[0]).layout;
    };
    read_in(step == nullptr ? Layout::kNchw : layout_of(step->src), node);
    const Layout makes = step == nullptr ? Layout::kNchw : layout_of(step->dst);
    const WithInsertPoint after(node->next());
    for (JitValue* output : node->outputs()) {
      const auto value = index_of_value_.find(output);
      if (value != index_of_value_.end()) add({value->second, makes}, output);
    }
  }

  // The op of an attention takes tensors of any strides, so it stays, with the chosen name.
  void name_primitive(JitNode* node, const Primitive& primitive) {
    const WithInsertPoint at(node);
    node->replaceInputWith(node->namedInput("primitive"), jit_->insertConstant(primitive.name));
  }

  void ask_shape(JitNode* node, const Schedule::Slot& asked) {
    const bool asks_type = node->kind() == torch::jit::prim::dtype;
    JitValue* const tensor = made_[asked.value].at(asked.layout);
    if (!is_blocked(asked.layout) && !(asks_type && is_typed(asked.layout))) {
      node->replaceInput(0, tensor);
      return;
    }
    if (asks_type) {  // only a model in f32 has tensors in a coarser type
      TORCHALGO_ASSERT(graph_.values[asked.value].dtype == DType::kF32);
      const WithInsertPoint at(node);
      const auto f32 = static_cast<std::int64_t>(at::kFloat);
      node->output()->replaceAllUsesWith(jit_->insertConstant(f32));
      return;
    }
    JitValue* answer = answer_shape_query(node, tensor, graph_.values[asked.value].sizes.at(1));
    node->output()->replaceAllUsesWith(answer);
  }

  void read_in(Layout layout, JitNode* node) {
    for (std::size_t i = 0; i < node->inputs().size(); ++i) {
      const auto value = index_of_value_.find(node->input(i));
      if (value == index_of_value_.end()) continue;
      const auto& made = made_[value->second];
      const auto found = made.find(layout);
      // A list that only a planned concat reads is removed with it.
      if (found == made.end() && node->kind() == torch::jit::prim::ListConstruct) continue;
      TORCHALGO_CHECK(
          found != made.end(), "TA2202 plan: {} reads {} in {}, which no entry of the plan makes",
          node->kind().toQualString(), graph_.values[value->second].name, to_string(layout));
      node->replaceInput(i, found->second);
    }
    for (JitBlock* block : node->blocks()) {
      for (JitNode* inner : block->nodes()) read_in(Layout::kNchw, inner);
      read_in(Layout::kNchw, block->return_node());
    }
  }

  // Notes where a tensor is, and adds the changes of layout of its value.
  void add(const Schedule::Slot& tensor, JitValue* made) {
    made_[tensor.value][tensor.layout] = made;
    for (const Schedule::Step* change : changes_of_[tensor.value]) {
      const Schedule::Slot& dst = slot(change->dst[0]);
      made_[dst.value][dst.layout] = make_call(*change)->output();
    }
  }

  [[nodiscard]] JitValue* read(int index) const {
    return made_[slot(index).value].at(slot(index).layout);
  }

  // op(src, packed, further arguments..., primitive, layer)
  JitNode* make_call(const Schedule::Step& step) {
    JitValue* const src = read(step.src[0]);
    const std::string& view = step.primitive.name;
    if (view == kViewRelabel) return make_op("torchalgo::relabel", {src, nullptr}, step);
    if (view == kViewSlice) return make_op("torchalgo::slice", {src, nullptr}, step);
    if (view == kViewConcat) return make_join(step);
    std::string op = "torchalgo::run_op";
    std::vector<JitValue*> arguments = {src, nullptr};
    if (is_layout_change(step)) {
      op = "torchalgo::transform";
    } else if (runs_as_conv(*step.problem)) {
      op = "torchalgo::run_conv";
      arguments.push_back(step.residual ? read(*step.residual)
                                        : jit_->insertConstant(c10::IValue()));
    } else if (JitValue* const size = size_of_result(step)) {
      op = "torchalgo::run_sized";
      arguments.push_back(size);
    } else {
      arguments[0] = insert_list(step);
    }
    if (const auto& part = slot(step.dst[0]).part) {
      op += "_out";
      arguments.push_back(buffer(part->buffer, src));
      arguments.push_back(jit_->insertConstant(part->channel));
    }
    return make_op(op, std::move(arguments), step);
  }

  // Returns the height and the width that the graph computes for a result, or null.
  JitValue* size_of_result(const Schedule::Step& step) {
    if (!takes_size(*step.problem)) return nullptr;
    auto* const size = const_cast<JitValue*>(computed_size(nodes_[step.covers[0]]));
    if (size == nullptr || *size->type() != *c10::IntType::get()) return size;
    // one number for both
    return jit_->insertNode(jit_->createList(c10::IntType::get(), {size, size}))->output();
  }

  JitNode* make_join(const Schedule::Step& step) {
    JitValue* const parts = insert_list(step);
    JitValue* of_parts = step.buffer ? buffers_[*step.buffer] : nullptr;
    if (of_parts == nullptr) of_parts = read(step.src[0]);  // no frame: the concat copies
    return make_op("torchalgo::join", {parts, nullptr, of_parts}, step);
  }

  // Weights and bias of each layer in turn.
  [[nodiscard]] LayerTensors weights_of_step(const Schedule::Step& step) const {
    if (is_layout_change(step)) return LayerTensors({std::nullopt, std::nullopt});
    LayerTensors tensors;
    for (const int node : step.covers) {
      const bool is_layer = node == step.covers[0] || is_convolution(*graph_.nodes[node].problem);
      if (!is_layer) continue;
      const OpWeights own = weights_of(nodes_[node], *graph_.nodes[node].problem);
      add_tensor(tensors, own.weights);
      add_tensor(tensors, own.bias);
    }
    return tensors;
  }

  JitValue* insert_list(const Schedule::Step& step) {
    std::vector<JitValue*> tensors;
    for (const int src : step.src) tensors.push_back(read(src));
    if (step.residual) tensors.push_back(read(*step.residual));
    return jit_->insertNode(jit_->createList(c10::TensorType::get(), tensors))->output();
  }

  // A buffer is made before its first writer, on the device of `like`.
  JitValue* buffer(int index, JitValue* like) {
    JitValue*& made = buffers_[index];
    if (made == nullptr) {
      JitValue* const sizes = jit_->insertConstant(schedule_.buffers[index]);
      made = jit_->insert(c10::Symbol::fromQualString("torchalgo::new_buffer"), {like, sizes});
    }
    return made;
  }

  JitNode* make_op(const std::string& op, std::vector<JitValue*> inputs,
                   const Schedule::Step& step) {
    inputs[1] =
        add_attribute(pack(*step.problem, step.primitive, step.layer, weights_of_step(step)));
    inputs.push_back(jit_->insertConstant(step.primitive.name));
    inputs.push_back(jit_->insertConstant(step.layer));
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
  const Schedule schedule_;
  std::vector<JitValue*> buffers_;  // by buffer of schedule_; null: not made yet
  Module module_;
  std::shared_ptr<JitGraph> jit_;
  std::vector<const Schedule::Step*> step_at_;                  // by the last node that it covers
  std::vector<std::vector<const Schedule::Step*>> changes_of_;  // by value: changes of layout
  std::vector<JitNode*> nodes_;                                 // by node of graph_
  std::vector<JitValue*> values_;                               // by value of graph_
  std::unordered_map<const JitNode*, int> index_of_node_;  // for inner nodes, that of their owner
  std::unordered_map<const JitValue*, int> index_of_value_;
  std::vector<std::map<Layout, JitValue*>> made_;  // by value: in which layouts it is where
  std::unordered_set<const JitNode*> replaced_;
  int attribute_count_ = 0;
};

}  // namespace

Rewritten rewrite_graph(const ImportedGraph& imported, const Plan& plan) {
  return Rewriter(imported, plan).rewrite();
}

}  // namespace torchalgo

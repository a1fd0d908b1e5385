// SPDX-License-Identifier: BSD-3-Clause
#include "import/import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "import/names.h"
#include "import/read_op.h"
#include "import/shape_query.h"
#include "ir/arithmetic.h"
#include "simplify/simplify.h"
#include "torchscript/constants.h"
#include "torchscript/own_unit.h"

namespace torchalgo {

using torch::jit::Block;
using torch::jit::Module;

namespace {

using JitNode = torch::jit::Node;
using JitValue = torch::jit::Value;

bool can_hold_tensor(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::AnyType:
    case c10::TypeKind::ClassType:
    case c10::TypeKind::InterfaceType:
      return true;
    default:
      break;
  }
  const auto contained = type.containedTypes();
  return std::any_of(contained.begin(), contained.end(),
                     [](const auto& inner) { return can_hold_tensor(*inner); });
}

// Returns true for weights and other members of the module, but not for members of an object that
// the graph makes.
bool is_source(const JitNode* node) {
  if (node->kind() == torch::jit::prim::Constant) return true;
  if (node->kind() != torch::jit::prim::GetAttr) return false;
  const JitValue* object = node->input(0);
  while (object->node()->kind() == torch::jit::prim::GetAttr) object = object->node()->input(0);
  return object == node->owningGraph()->inputs()[0];
}

// Returns true if the node packs tensors without reading them. A reader of the package reads the
// tensors.
bool is_container(const JitNode* node) {
  return node->kind() == torch::jit::prim::ListConstruct ||
         node->kind() == torch::jit::prim::TupleConstruct ||
         node->kind() == torch::jit::prim::DictConstruct;
}

void collect_convolutions(const Block* block, std::vector<JitNode*>& found) {
  for (JitNode* node : const_cast<Block*>(block)->nodes()) {
    if (is_convolution(node)) found.push_back(node);
    for (const Block* inner : node->blocks()) collect_convolutions(inner, found);
  }
}

// Returns the values of outer blocks that `block` uses.
void collect_captures(Block* block, std::set<const JitValue*>& inside,
                      std::vector<JitValue*>& captures) {
  for (const JitValue* input : block->inputs()) inside.insert(input);
  const auto note = [&](JitValue* value) {
    if (!inside.contains(value)) captures.push_back(value);
  };
  for (JitNode* node : block->nodes()) {
    for (JitValue* input : node->inputs()) note(input);
    for (Block* inner : node->blocks()) collect_captures(inner, inside, captures);
    for (const JitValue* output : node->outputs()) inside.insert(output);
  }
  for (JitValue* output : block->outputs()) note(output);
}

class Importer {
 public:
  explicit Importer(ImportedGraph& imported, const std::shared_ptr<torch::jit::Graph>& graph,
                    SeenTensors seen)
      : imported_(imported), jit_(*graph), seen_(std::move(seen)), writes_(graph) {}

  void import_all(const std::vector<c10::IValue>& arguments) {
    import_inputs(arguments);
    for (JitNode* node : jit_.nodes()) import_node(node);
    import_outputs();
    set_names();
    drop_inner();
    set_layouts_of_permutes();
    check_graph(imported_.graph);
  }

 private:
  Graph& graph() { return imported_.graph; }

  int add_value(JitValue* value, int producer) {
    const auto seen = seen_.find(value);
    TensorInfo info = describe(seen == seen_.end() ? nullptr : &seen->second);
    const int index = static_cast<int>(graph().values.size());
    graph().values.push_back({{}, info.sizes, info.dtype, producer});
    imported_.values.push_back(value);
    if (writes_.has(value)) info.obstacle = "it is changed in place, or shares memory so";
    infos_[value] = std::move(info);
    held_[value] = {index};
    return index;
  }

  void import_inputs(const std::vector<c10::IValue>& arguments) {
    for (std::size_t i = 1; i < jit_.inputs().size(); ++i) {
      JitValue* input = jit_.inputs()[i];
      if (!is_tensor(input)) continue;
      graph().inputs.push_back(add_value(input, -1));
      const at::Tensor& tensor = arguments[i].toTensor();
      const bool is_nhwc = tensor.dim() == 4 && !tensor.is_contiguous() &&
                           tensor.is_contiguous(at::MemoryFormat::ChannelsLast);
      graph().input_layouts.push_back(is_nhwc ? Layout::kNhwc : Layout::kNchw);
    }
  }

  // Returns the tensors of the data flow that a value is or may hold.
  [[nodiscard]] std::vector<int> held(const JitValue* value) const {
    const auto it = held_.find(value);
    return it == held_.end() ? std::vector<int>{} : it->second;
  }

  template <typename Values>
  [[nodiscard]] std::vector<int> held_by_all(const Values& values) const {
    std::vector<int> all;
    for (const JitValue* value : values) {
      for (const int index : held(value)) {
        if (std::find(all.begin(), all.end(), index) == all.end()) all.push_back(index);
      }
    }
    return all;
  }

  [[nodiscard]] std::vector<int> read_by(JitNode* node) const {
    std::vector<JitValue*> values(node->inputs().begin(), node->inputs().end());
    std::set<const JitValue*> inside;
    for (Block* block : node->blocks()) collect_captures(block, inside, values);
    return held_by_all(values);
  }

  // Numbers that tracing wraps in tensors are not data flow.
  [[nodiscard]] bool is_data(const JitValue* value) const {
    if (!is_tensor(value)) return false;
    const auto seen = seen_.find(value);
    return seen == seen_.end() || !seen->second.sizes.empty() ||
           at::isFloatingType(seen->second.scalar_type);
  }

  void import_node(JitNode* node) {
    if (is_source(node)) return;
    if (is_container(node)) {
      held_[node->output()] = held_by_all(node->inputs());
      return;
    }
    const int index = static_cast<int>(graph().nodes.size());
    const std::vector<int> reads = read_by(node);
    Node made;
    made.kind = node->kind().toQualString();
    for (JitValue* output : node->outputs()) {
      if (is_data(output)) {
        made.outputs.push_back(add_value(output, index));
      } else if (can_hold_tensor(*output->type())) {
        held_[output] = reads;
      }
    }
    hold_in_changed(node, reads);
    if (reads.empty() && made.outputs.empty()) return;
    OpReading reading = read_op(node, infos_);
    std::string refusal = reading.problem ? refuse_sizes(*reading.problem) : "";
    if (!refusal.empty()) reading = {.note = std::move(refusal)};
    made.inputs = reading.problem ? indices_of(reading.inputs) : reads;
    made.problem = std::move(reading.problem);
    made.note = node->blocks().empty() ? std::move(reading.note) : note_of_blocks(node);
    made.reads_shape_only = reads_shape_only(node);
    graph().nodes.push_back(std::move(made));
    imported_.nodes.push_back(node);
    std::vector<JitNode*>& inner = imported_.inner.emplace_back();
    for (const script::Node one : reading.inner) inner.push_back(one.get());
  }

  [[nodiscard]] std::vector<int> indices_of(const std::vector<script::Value>& values) const {
    std::vector<int> indices;
    for (const script::Value value : values) indices.push_back(held(value.get()).at(0));
    return indices;
  }

  // A 1-D layer is planned as a 2-D one, so its tensors may have another rank in another layout.
  [[nodiscard]] bool reads_shape_only(const JitNode* node) const {
    if (!is_shape_query(node)) return false;
    const auto info = infos_.find(node->input(0));
    return info != infos_.end() && info->second.sizes.size() != 3;
  }

  // Handles append, __setitem__ and the like: a container may return what was put into it.
  void hold_in_changed(const JitNode* node, const std::vector<int>& reads) {
    const auto* schema = node->maybeSchema();
    if (schema == nullptr || !schema->is_mutable() || node->inputs().empty()) return;
    if (const JitValue* changed = node->input(0); !is_tensor(changed)) held_[changed] = reads;
  }

  [[nodiscard]] static std::string note_of_blocks(const JitNode* node) {
    std::vector<JitNode*> convolutions;
    for (const Block* block : node->blocks()) collect_convolutions(block, convolutions);
    if (convolutions.empty()) return {};
    return fmt::format("inside a branch or loop: {}", fmt::join(name_nodes(convolutions), ", "));
  }

  void import_outputs() { graph().outputs = held_by_all(jit_.return_node()->inputs()); }

  void set_names() {
    const std::vector<std::string> names = name_nodes(imported_.nodes);
    std::set<std::string> taken;
    for (std::size_t n = 0; n < names.size(); ++n) {
      Node& node = graph().nodes[n];
      node.name = names[n];
      for (std::size_t i = 0; i < node.outputs.size(); ++i) {
        std::string& name = graph().values[node.outputs[i]].name;
        name = i == 0 ? node.name : fmt::format("{}:{}", node.name, i);
        taken.insert(name);
      }
    }
    const std::vector<std::string> arguments = argument_names(jit_);
    for (std::size_t i = 1; i < jit_.inputs().size(); ++i) {
      if (!is_tensor(jit_.inputs()[i])) continue;
      std::string& name = graph().values[held(jit_.inputs()[i]).at(0)].name;
      name = arguments[i - 1];
      // A module may have the name of an argument.
      if (taken.contains(name)) name = fmt::format("{}:input", name);
    }
  }

  // Removes the nodes whose work a later node includes, and their results.
  void drop_inner() {
    std::unordered_set<const JitNode*> inner;
    for (const auto& nodes : imported_.inner) inner.insert(nodes.begin(), nodes.end());
    if (inner.empty()) return;
    const ImportedGraph all = std::exchange(imported_, {imported_.module, {}, {}, {}, {}});
    std::vector<int> node_at, value_at;  // the new index of each one that stays
    int next = 0;
    for (const JitNode* node : all.nodes) node_at.push_back(inner.contains(node) ? -1 : next++);
    for (std::size_t v = 0; v < all.values.size(); ++v) {
      Value value = all.graph.values[v];
      if (value.producer >= 0) value.producer = node_at[value.producer];
      const bool stays = all.graph.values[v].producer < 0 || value.producer >= 0;
      value_at.push_back(stays ? static_cast<int>(graph().values.size()) : -1);
      if (!stays) continue;
      graph().values.push_back(std::move(value));
      imported_.values.push_back(all.values[v]);
    }
    const auto moved = [&](std::vector<int> values) {
      for (int& value : values) value = value_at[value];
      return values;
    };
    for (std::size_t n = 0; n < all.nodes.size(); ++n) {
      if (node_at[n] < 0) continue;
      Node node = all.graph.nodes[n];
      node.inputs = moved(node.inputs);
      node.outputs = moved(node.outputs);
      graph().nodes.push_back(std::move(node));
      imported_.nodes.push_back(all.nodes[n]);
      imported_.inner.push_back(all.inner[n]);
    }
    graph().inputs = moved(all.graph.inputs);
    graph().input_layouts = all.graph.input_layouts;
    graph().outputs = moved(all.graph.outputs);
  }

  // An image [n, c, h, w] in nhwc has the memory of [n, h, w, c], so a permute between the two
  // moves nothing. The planner sees this only at permutes whose readers need dense memory: any
  // strides will do for the others.
  void set_layouts_of_permutes() {
    const std::vector<std::vector<int>> readers = readers_of(graph());
    for (std::size_t n = 0; n < graph().nodes.size(); ++n) {
      Node& node = graph().nodes[n];
      const JitNode* permute = imported_.nodes[n];
      if (node.problem || !is_permute_of_image(permute)) continue;
      // An attention takes any strides.
      const auto is_planned = [&](int reader) {
        const std::optional<Problem>& problem = graph().nodes[reader].problem;
        return problem && !std::holds_alternative<AttentionProblem>(*problem);
      };
      const std::vector<int>& own = readers[node.outputs.at(0)];
      if (is_permute(permute, {0, 2, 3, 1}) && is_made_dense(permute->output())) {
        node.reads = Layout::kNhwc;
      } else if (is_permute(permute, {0, 3, 1, 2}) && !may_be_returned(permute->output()) &&
                 std::any_of(own.begin(), own.end(), is_planned)) {
        node.makes = Layout::kNhwc;
      }
    }
  }

  [[nodiscard]] bool is_permute_of_image(const JitNode* node) const {
    if (!is_kind(node, "aten::permute")) return false;
    const auto src = infos_.find(node->input(0));
    return src != infos_.end() && src->second.obstacle.empty() && src->second.sizes.size() == 4;
  }

  // Returns true if each reader of the tensor makes it dense.
  [[nodiscard]] static bool is_made_dense(const JitValue* value) {
    const auto& uses = value->uses();
    return !uses.empty() && std::all_of(uses.begin(), uses.end(), [](const torch::jit::Use& use) {
      return is_kind(use.user, "aten::contiguous");
    });
  }

  ImportedGraph& imported_;
  torch::jit::Graph& jit_;
  SeenTensors seen_;
  script::Writes writes_;
  TensorInfos infos_;
  std::unordered_map<const JitValue*, std::vector<int>> held_;
};

void check_frozen(const Module& module) {
  TORCHALGO_CHECK(module.find_method("forward").has_value(),
                  "TA1119 import_graph: {} has no forward; expected a module with one",
                  module.type()->str());
  if (!module.hasattr("training")) return;
  TORCHALGO_CHECK(
      !module.is_training(),
      "TA1103 import_graph: the module is in train mode: call eval(), then torch.jit.freeze");
  throw Error("TA1109 import_graph: the module is not frozen: call torch.jit.freeze on it");
}

// Self, then the arguments with defaults filled in.
std::vector<c10::IValue> complete_arguments(const Module& module,
                                            const std::vector<c10::IValue>& inputs) {
  std::vector<c10::IValue> arguments = {module._ivalue()};
  arguments.insert(arguments.end(), inputs.begin(), inputs.end());
  try {
    module.get_method("forward").function().getSchema().checkAndNormalizeInputs(arguments);
  } catch (const std::exception& error) {
    throw Error(
        fmt::format("TA1205 import_graph: the inputs do not fit forward: {}", cause_of(error)));
  }
  return arguments;
}

}  // namespace

ImportedGraph import_graph(const Module& frozen, const std::vector<c10::IValue>& inputs) {
  check_frozen(frozen);
  ImportedGraph imported;
  imported.module = with_own_unit(frozen).clone();
  const std::vector<c10::IValue> arguments = complete_arguments(imported.module, inputs);
  auto graph = imported.module.get_method("forward").graph();
  SeenTensors seen = simplify(graph, arguments);
  Importer(imported, graph, std::move(seen)).import_all(arguments);
  return imported;
}

ImportedGraph with_tf32_convolutions(ImportedGraph imported) {
  for (torchalgo::Node& node : imported.graph.nodes) {
    auto* const conv = node.problem ? std::get_if<ConvProblem>(&*node.problem) : nullptr;
    if (conv != nullptr && conv->dtype == DType::kF32) conv->dtype = DType::kTf32;
  }
  return imported;
}

}  // namespace torchalgo

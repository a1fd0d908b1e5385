// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/size_branches.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "torchscript/constants.h"
#include "torchscript/graph_sizes.h"
#include "torchscript/source_calls.h"

namespace torchalgo {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

// They read a tensor, but none of its elements.
constexpr std::array<std::string_view, 6> kQueries = {
    "aten::size", "aten::dim", "aten::numel", "prim::shape", "prim::dtype", "prim::is_cuda"};

// The sizes of their results depend on elements, which their tags do not say.
constexpr std::array<std::string_view, 4> kSizedByElements = {
    "aten::argwhere", "aten::nonzero_numpy", "aten::one_hot", "aten::tensor_split"};

// Returns true if the sizes of the node's results may depend on elements of tensors.
bool is_sized_by_elements(const Node* node) {
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (schema == nullptr || is_any(node, kSizedByElements)) return true;
  if (schema->name() == "aten::where" && node->inputs().size() == 1) return true;
  const auto op = c10::Dispatcher::singleton().findOp(schema->operator_name());
  return !op || op->hasTag(at::Tag::dynamic_output_shape);
}

constexpr const char* kCheck = "torchalgo::take_branch";

// Returns the place of the node in the model, such as "net.py(12): forward". Files keep it, so
// folders are left out.
std::string source_line(const Node& node) {
  const std::vector<std::string> calls = source_calls(node);
  if (calls.empty()) return {};
  return calls.front().substr(calls.front().rfind('/') + 1);
}

// Inserts a check that `condition` is `taken` in each call.
void insert_check(Value* condition, bool taken, bool other_raises, Node* like) {
  Graph& graph = *condition->owningGraph();
  const std::vector<Value*> inputs = {condition, graph.insertConstant(taken),
                                      graph.insertConstant(other_raises),
                                      graph.insertConstant(source_line(*like))};
  Node* const check =
      graph.insertNode(graph.create(c10::Symbol::fromQualString(kCheck), inputs, 0));
  check->copyMetadata(like);
}

// Returns true if a check of the graph pins the sizes of its inputs.
bool pins_sizes(Graph& graph) {
  const auto nodes = graph.nodes();
  return std::any_of(nodes.begin(), nodes.end(), [](const Node* node) {
    return is_kind(node, kCheck) && constant_bool(node->input(2)) == false;
  });
}

// Returns true for a slice from the beginning to an end that is no constant.
bool is_slice_to_computed_end(const Node* node) {
  if (!is_kind(node, "aten::slice") || node->inputs().size() != 5) return false;
  const Value *begin = node->input(2), *end = node->input(3);
  const bool is_computed = end->type()->kind() == c10::TypeKind::IntType && !constant_int(end);
  return is_computed && (is_none(begin) || constant_int(begin) == 0) &&
         constant_int(node->input(1)) && constant_int(node->input(4)) == 1;
}

class SizeBranches {
 public:
  explicit SizeBranches(Graph& graph) : graph_(graph) {}

  // Returns the branches of the outermost block that depend only on sizes.
  std::vector<Node*> find() {
    std::vector<Node*> found;
    for (Node* node : graph_.nodes()) {
      if (node->kind() != torch::jit::prim::If || !follows_from_sizes(node->input(0))) continue;
      found.push_back(node);
      // A later branch may depend on the results of this one.
      for (std::size_t i = 0; i < node->outputs().size(); ++i) {
        known_[node->output(i)] =
            std::all_of(node->blocks().begin(), node->blocks().end(), [&](Block* block) {
              return is_plain(block->outputs()[i]) && follows_from_sizes(block->outputs()[i]);
            });
      }
    }
    return found;
  }

  // Moves the nodes of the block in front of the branch, and removes the branch.
  void take(Node* branch, bool taken) {
    Block* const block = branch->blocks().at(taken ? 0 : 1);
    const Block* const other = branch->blocks().at(taken ? 1 : 0);
    insert_check(branch, taken, raises(other));
    const std::vector<Node*> nodes(block->nodes().begin(), block->nodes().end());
    for (Node* node : nodes) node->moveBefore(branch);
    for (std::size_t i = 0; i < branch->outputs().size(); ++i)
      branch->output(i)->replaceAllUsesWith(block->outputs()[i]);
    branch->destroy();
  }

  // Returns true if the number or list is computed from sizes, types and constants.
  bool follows_from_sizes(const Value* value) {
    const auto known = known_.find(value);
    if (known != known_.end()) return known->second;
    const Node* node = value->node();
    const bool is_query = is_any(node, kQueries) && has_computed_sizes(node->input(0));
    return known_[value] = node->kind() == torch::jit::prim::Constant || is_query ||
                           is_computed_from_sizes(node);
  }

 private:
  static bool is_plain(const Value* value) {
    const c10::TypeKind kind = value->type()->kind();
    const bool is_number = kind == c10::TypeKind::IntType || kind == c10::TypeKind::BoolType ||
                           kind == c10::TypeKind::FloatType || kind == c10::TypeKind::NoneType;
    const auto list = value->type()->cast<c10::ListType>();
    return is_number || (list && *list->getElementType() == *c10::IntType::get());
  }

  // Returns true if the sizes of a tensor, or of the tensors of a list, follow from those of the
  // inputs. Those of x[mask] do not.
  bool has_computed_sizes(const Value* value) {
    const auto known = sized_.find(value);
    if (known != sized_.end()) return known->second;
    const Node* node = value->node();
    const torch::jit::NodeKind kind = node->kind();
    if (kind == torch::jit::prim::Param || kind == torch::jit::prim::GetAttr) return true;
    const bool is_list =
        kind == torch::jit::prim::ListConstruct || kind == torch::jit::prim::ListUnpack ||
        kind == torch::jit::prim::TupleConstruct || kind == torch::jit::prim::TupleUnpack;
    const bool is_op = kind.is_aten() && node->blocks().empty() && !is_sized_by_elements(node);
    const auto inputs = node->inputs();
    return sized_[value] =
               (is_list || is_op) &&
               std::all_of(inputs.begin(), inputs.end(), [&](const Value* input) {
                 if (input->node()->kind() == torch::jit::prim::Constant) return true;
                 return is_plain(input) ? follows_from_sizes(input) : has_computed_sizes(input);
               });
  }

  bool is_computed_from_sizes(const Node* node) {
    const bool is_op = node->kind().is_aten() || node->kind() == torch::jit::prim::ListConstruct ||
                       node->kind() == torch::jit::prim::ListUnpack;
    if (!is_op || node->inputs().empty() || !node->blocks().empty() || node->hasSideEffects())
      return false;
    const auto outputs = node->outputs();
    if (!std::all_of(outputs.begin(), outputs.end(), is_unchanged)) return false;
    const auto inputs = node->inputs();
    return std::all_of(inputs.begin(), inputs.end(), [&](const Value* input) {
      return is_plain(input) && follows_from_sizes(input);
    });
  }

  // Returns true unless an op may change the value, as `append` changes a list.
  static bool is_unchanged(const Value* value) {
    if (!is_plain(value)) return false;
    const auto& uses = value->uses();
    return std::none_of(uses.begin(), uses.end(), [](const torch::jit::Use& use) {
      const c10::FunctionSchema* schema = use.user->maybeSchema();
      return schema != nullptr && schema->is_mutable();
    });
  }

  static bool raises(const Block* block) {
    const auto nodes = block->nodes();
    return std::any_of(nodes.begin(), nodes.end(), [](const Node* node) {
      return node->kind() == torch::jit::prim::RaiseException;
    });
  }

  void insert_check(Node* branch, bool taken, bool other_raises) {
    const torch::jit::WithInsertPoint at(branch);
    torchalgo::insert_check(branch->input(0), taken, other_raises, branch);
  }

  Graph& graph_;
  std::unordered_map<const Value*, bool> known_, sized_;
};

}  // namespace

bool resolve_size_branches(std::shared_ptr<Graph>& graph,
                           const std::vector<c10::IValue>& arguments) {
  SizeBranches branches(*graph);
  const std::vector<Node*> found = branches.find();
  if (found.empty()) return false;
  const std::unordered_map<const Node*, bool> taken = see_branches(graph, arguments);
  for (Node* branch : found) branches.take(branch, taken.at(branch));
  return true;
}

void pin_size(Value* tensor, std::int64_t dim, std::int64_t size, Node* before) {
  Graph& graph = *tensor->owningGraph();
  const torch::jit::WithInsertPoint at(before);
  Value* const number = graph.insert(torch::jit::aten::size, {tensor, graph.insertConstant(dim)});
  Value* const is_equal = graph.insert(torch::jit::aten::eq, {number, graph.insertConstant(size)});
  insert_check(is_equal, true, false, before);
}

bool remove_whole_slices(std::shared_ptr<Graph>& graph, const SeenTensors& seen) {
  if (!pins_sizes(*graph)) return false;
  std::optional<torch::jit::AliasDb> aliases;
  SizeBranches sizes(*graph);
  bool is_changed = false;
  const std::vector<Node*> nodes(graph->nodes().begin(), graph->nodes().end());
  for (Node* node : nodes) {
    if (!is_slice_to_computed_end(node) || may_be_returned(node->output())) continue;
    if (!sizes.follows_from_sizes(node->input(3))) continue;
    const auto before = seen.find(node->input(0)), after = seen.find(node->output());
    const bool is_whole = before != seen.end() && after != seen.end() &&
                          before->second.is_always_so &&
                          before->second.sizes == after->second.sizes;
    if (!is_whole) continue;
    if (!aliases) aliases.emplace(graph);
    if (aliases->hasWriters(node->output())) continue;
    const torch::jit::WithInsertPoint at(node);
    Value* const size = graph->insert(torch::jit::aten::size, {node->input(0), node->input(1)});
    Value* const reaches_end = graph->insert(torch::jit::aten::ge, {node->input(3), size});
    insert_check(reaches_end, true, false, node);
    node->output()->replaceAllUsesWith(node->input(0));
    node->destroy();
    is_changed = true;
  }
  return is_changed;
}

}  // namespace torchalgo

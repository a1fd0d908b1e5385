// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/size_branches.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "simplify/rewrite_each.h"
#include "torchscript/constants.h"
#include "torchscript/graph_sizes.h"
#include "torchscript/source_calls.h"

namespace torchalgo {

using script::Block;
using script::Graph;
using script::Node;
using script::Value;

namespace {

// They read a tensor, but none of its elements.
constexpr std::array<std::string_view, 6> kQueries = {
    "aten::size", "aten::dim", "aten::numel", "prim::shape", "prim::dtype", "prim::is_cuda"};

// The sizes of their results depend on elements, which their tags do not say.
constexpr std::array<std::string_view, 4> kSizedByElements = {
    "aten::argwhere", "aten::nonzero_numpy", "aten::one_hot", "aten::tensor_split"};

// Returns true if the sizes of the node's results may depend on elements of tensors.
bool is_sized_by_elements(Node node) {
  const c10::FunctionSchema* schema = node.schema();
  if (schema == nullptr || is_any(node, kSizedByElements)) return true;
  if (schema->name() == "aten::where" && node.input_count() == 1) return true;
  const auto op = c10::Dispatcher::singleton().findOp(schema->operator_name());
  return !op || op->hasTag(at::Tag::dynamic_output_shape);
}

constexpr const char* kCheck = "torchalgo::take_branch";

// Returns the place of the node in the model, such as "net.py(12): forward". Files keep it, so
// folders are left out.
std::string source_line(Node node) {
  const std::vector<std::string> calls = source_calls(*node.get());
  if (calls.empty()) return {};
  return calls.front().substr(calls.front().rfind('/') + 1);
}

// Inserts a check in front of `before` that `condition` is `taken` in each call.
void insert_check(Value condition, bool taken, bool other_raises, Node before) {
  script::Builder(before).node(kCheck, {condition, taken, other_raises, source_line(before)}, 0);
}

// Returns true if a check of the graph pins the sizes of its inputs.
bool pins_sizes(const Graph& graph) {
  const auto nodes = graph.nodes();
  return std::any_of(nodes.begin(), nodes.end(), [](Node node) {
    return node.is(kCheck) && constant_bool(node.input(2)) == false;
  });
}

// Returns true for a slice from the beginning to an end that is no constant.
bool is_slice_to_computed_end(Node node) {
  if (!node.is("aten::slice") || node.input_count() != 5) return false;
  const Value begin = node.input(2), end = node.input(3);
  const bool is_computed = end.type()->kind() == c10::TypeKind::IntType && !constant_int(end);
  return is_computed && (is_none(begin) || constant_int(begin) == 0) &&
         constant_int(node.input(1)) && constant_int(node.input(4)) == 1;
}

class SizeBranches {
 public:
  explicit SizeBranches(const Graph& graph) : graph_(graph) {}

  // Returns the branches of the outermost block that depend only on sizes.
  std::vector<Node> find() {
    std::vector<Node> found;
    for (Node node : graph_.nodes()) {
      if (!node.is("prim::If") || !follows_from_sizes(node.input(0))) continue;
      found.push_back(node);
      const std::vector<Block> blocks = node.blocks();
      // A later branch may depend on the results of this one.
      for (std::size_t i = 0; i < node.output_count(); ++i) {
        known_[node.output(i)] = std::all_of(blocks.begin(), blocks.end(), [&](Block block) {
          return is_plain(block.outputs()[i]) && follows_from_sizes(block.outputs()[i]);
        });
      }
    }
    return found;
  }

  // Moves the nodes of the block in front of the branch, and removes the branch.
  void take(Node branch, bool taken) {
    const Block block = branch.blocks().at(taken ? 0 : 1);
    const Block other = branch.blocks().at(taken ? 1 : 0);
    insert_check(branch.input(0), taken, raises(other), branch);
    for (const Node node : block.nodes()) node.move_before(branch);
    for (std::size_t i = 0; i < branch.output_count(); ++i)
      branch.output(i).replace_uses(block.outputs()[i]);
    branch.destroy();
  }

  // Returns true if the number or list is computed from sizes, types and constants.
  bool follows_from_sizes(Value value) {
    const auto known = known_.find(value);
    if (known != known_.end()) return known->second;
    Node node = value.node();
    const bool is_query = is_any(node, kQueries) && has_computed_sizes(node.input(0));
    return known_[value] = node.is("prim::Constant") || is_query || is_computed_from_sizes(node);
  }

 private:
  static bool is_plain(Value value) {
    const c10::TypeKind kind = value.type()->kind();
    const bool is_number = kind == c10::TypeKind::IntType || kind == c10::TypeKind::BoolType ||
                           kind == c10::TypeKind::FloatType || kind == c10::TypeKind::NoneType;
    const auto list = value.type()->cast<c10::ListType>();
    return is_number || (list && *list->getElementType() == *c10::IntType::get());
  }

  // Returns true if the sizes of a tensor, or of the tensors of a list, follow from those of the
  // inputs. Those of x[mask] do not.
  bool has_computed_sizes(Value value) {
    const auto known = sized_.find(value);
    if (known != sized_.end()) return known->second;
    Node node = value.node();
    if (node.is("prim::Param", "prim::GetAttr")) return true;
    const bool is_list = node.is("prim::ListConstruct", "prim::ListUnpack", "prim::TupleConstruct",
                                 "prim::TupleUnpack");
    const bool is_op = is_aten(node) && node.blocks().empty() && !is_sized_by_elements(node);
    const auto inputs = node.inputs();
    return sized_[value] =
               (is_list || is_op) && std::all_of(inputs.begin(), inputs.end(), [&](Value input) {
                 if (input.node().is("prim::Constant")) return true;
                 return is_plain(input) ? follows_from_sizes(input) : has_computed_sizes(input);
               });
  }

  bool is_computed_from_sizes(Node node) {
    const bool is_op = is_aten(node) || node.is("prim::ListConstruct", "prim::ListUnpack");
    if (!is_op || node.inputs().empty() || !node.blocks().empty() || node.has_side_effects())
      return false;
    const auto outputs = node.outputs();
    if (!std::all_of(outputs.begin(), outputs.end(), is_unchanged)) return false;
    const auto inputs = node.inputs();
    return std::all_of(inputs.begin(), inputs.end(),
                       [&](Value input) { return is_plain(input) && follows_from_sizes(input); });
  }

  // Returns true unless an op may change the value, as `append` changes a list.
  static bool is_unchanged(Value value) {
    if (!is_plain(value)) return false;
    const auto& uses = value.uses();
    return std::none_of(uses.begin(), uses.end(), [](const script::Use& use) {
      const c10::FunctionSchema* schema = use.user.schema();
      return schema != nullptr && schema->is_mutable();
    });
  }

  static bool raises(Block block) {
    const auto nodes = block.nodes();
    return std::any_of(nodes.begin(), nodes.end(),
                       [](Node node) { return node.is("prim::RaiseException"); });
  }

  Graph graph_;
  std::unordered_map<Value, bool> known_, sized_;
};

}  // namespace

bool resolve_size_branches(const Graph& graph, const std::vector<c10::IValue>& arguments) {
  SizeBranches branches(graph);
  const std::vector<Node> found = branches.find();
  if (found.empty()) return false;
  const std::unordered_map<Node, bool> taken = see_branches(graph, arguments);
  for (Node branch : found) branches.take(branch, taken.at(branch));
  return true;
}

void pin_size(Value tensor, std::int64_t dim, std::int64_t size, Node before) {
  const script::Builder at(before, nullptr);
  const Value is_equal = at.call("aten::eq", {at.call("aten::size", {tensor, dim}), size});
  insert_check(is_equal, true, false, before);
}

bool remove_whole_slices(const Graph& graph, const SeenTensors& seen) {
  if (!pins_sizes(graph)) return false;
  SizeBranches sizes(graph);
  const auto find = [&](Node node) -> std::optional<GraphPart> {
    if (!is_slice_to_computed_end(node) || may_be_returned(node.output())) return std::nullopt;
    if (!sizes.follows_from_sizes(node.input(3))) return std::nullopt;
    const auto before = seen.find(node.input(0)), after = seen.find(node.output());
    const bool is_whole = before != seen.end() && after != seen.end() &&
                          before->second.is_always_so &&
                          before->second.sizes == after->second.sizes;
    return is_whole ? std::optional(GraphPart{node, {node.input(0)}}) : std::nullopt;
  };
  return rewrite_each(graph, find, [](const GraphPart& found, const script::Builder& in_front) {
    const Node slice = found.last;
    const script::Builder at = in_front.like(nullptr);
    const Value size = at.call("aten::size", {slice.input(0), slice.input(1)});
    insert_check(at.call("aten::ge", {slice.input(3), size}), true, false, slice);
    return slice.input(0);
  });
}

}  // namespace torchalgo

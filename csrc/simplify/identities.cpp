// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "simplify/rewrite_each.h"
#include "torchscript/constants.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Value;

namespace {

// Returns true if the op makes new memory. Its values do not depend on its input's strides.
bool ignores_strides(Node node) {
  return is_convolution(node) || is_elementwise(node) ||
         node.is("aten::add", "aten::sub", "aten::mul", "aten::cat", "aten::batch_norm",
                 "aten::group_norm", "aten::max_pool2d", "aten::avg_pool2d", "aten::mean",
                 "aten::adaptive_avg_pool2d");
}

// Returns true if only convolutions read the tensor, perhaps through ops that pass on its strides.
// Their results have strides of their own. A view, or the caller, may need the tensor's strides.
bool ends_in_convolutions(Value value, int most_steps) {
  const auto& uses = value.uses();
  return most_steps > 0 && std::all_of(uses.begin(), uses.end(), [&](const script::Use& use) {
           Node user = use.user;
           if (is_convolution(user) || user.is("aten::size")) return true;
           const bool is_list = user.is("prim::ListConstruct") && is_fixed_list(user.output());
           return (is_list || ignores_strides(user)) &&
                  ends_in_convolutions(user.output(), most_steps - 1);
         });
}

bool is_idle_contiguous(Node node) {
  constexpr int kMostSteps = 6;
  return node.is("aten::contiguous") && ignores_strides(node.input(0).node()) &&
         ends_in_convolutions(node.output(), kMostSteps);
}

// Returns true for the integer 0. Tracing makes a tensor of it.
bool is_zero(Value value) {
  if (const auto tensor = constant_tensor(value)) {
    return tensor->dim() == 0 && at::isIntegralType(tensor->scalar_type(), true) &&
           tensor->item<std::int64_t>() == 0;
  }
  return value.type()->kind() == c10::TypeKind::IntType && constant_number(value) == 0.0;
}

// The sum of a floating-point tensor with an integer has the tensor's type.
bool adds_zero(Node node, const SeenTensors& seen) {
  if (!node.is("aten::add") || !is_tensor(node.output())) return false;
  const auto src = seen.find(node.input(0));
  return src != seen.end() && at::isFloatingType(src->second.scalar_type) && is_zero(node.input(1));
}

// Returns the type of a floating-point tensor, or nullopt.
std::optional<at::ScalarType> floating_type(Value value, const SeenTensors& seen) {
  const auto constant = constant_tensor(value);
  const auto it = seen.find(value);
  if (!constant && it == seen.end()) return std::nullopt;
  const at::ScalarType type = constant ? constant->scalar_type() : it->second.scalar_type;
  return at::isFloatingType(type) ? std::optional(type) : std::nullopt;
}

// Returns true for a cast of a floating-point tensor to the type that it has in the example. Models
// write it for autocast. For inputs of another type no plan runs.
bool is_idle_cast(Node node, const SeenTensors& seen) {
  if (!node.is("aten::to") || !node.has_argument("dtype")) return false;
  const auto type = floating_type(node.input(0), seen);
  const Value wanted = node.argument("dtype");
  const auto number = constant_number(wanted);
  const bool keeps_type =
      wanted.node().is("prim::dtype")
          ? floating_type(wanted.node().input(0), seen) == type
          : type && number == static_cast<double>(static_cast<std::int64_t>(*type));
  const bool keeps_format =
      !node.has_argument("memory_format") || is_none(node.argument("memory_format"));
  return type && keeps_type && keeps_format && !node.has_argument("device") &&
         constant_bool(node.argument("copy")) == false;
}

}  // namespace

bool remove_identities(const Graph& graph, const SeenTensors& seen) {
  const auto find = [&](Node node) -> std::optional<GraphPart> {
    const bool is_idle =
        is_idle_contiguous(node) || adds_zero(node, seen) || is_idle_cast(node, seen);
    // The caller would get the source itself.
    if (!is_idle || may_be_returned(node.output())) return std::nullopt;
    return GraphPart{node, {node.input(0)}};
  };
  return rewrite_each(graph, find,
                      [](const GraphPart& found, const auto&) { return found.reads[0]; });
}

}  // namespace torchalgo

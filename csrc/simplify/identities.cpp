// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/identities.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "simplify/shape_proofs.h"
#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

constexpr std::array<std::string_view, 10> kStrideless = {
    "aten::add",        "aten::sub",
    "aten::mul",        "aten::cat",
    "aten::batch_norm", "aten::group_norm",
    "aten::max_pool2d", "aten::avg_pool2d",
    "aten::mean",       "aten::adaptive_avg_pool2d"};

// Returns true if the op makes new memory. Its values do not depend on its input's strides.
bool ignores_strides(const Node* node) {
  return is_convolution(node) || is_elementwise(node) ||
         std::find(kStrideless.begin(), kStrideless.end(), node->kind().toQualString()) !=
             kStrideless.end();
}

// Returns true if only convolutions read the tensor, perhaps through ops that pass on its strides.
// Their results have strides of their own. A view, or the caller, may need the tensor's strides.
bool ends_in_convolutions(const Value* value, int most_steps) {
  const auto& uses = value->uses();
  return most_steps > 0 && std::all_of(uses.begin(), uses.end(), [&](const torch::jit::Use& use) {
           const Node* user = use.user;
           if (is_convolution(user) || is_kind(user, "aten::size")) return true;
           const bool is_list =
               is_kind(user, "prim::ListConstruct") && is_fixed_list(user->output());
           return (is_list || ignores_strides(user)) &&
                  ends_in_convolutions(user->output(), most_steps - 1);
         });
}

bool is_idle_contiguous(const Node* node) {
  constexpr int kMostSteps = 6;
  return is_kind(node, "aten::contiguous") && ignores_strides(node->input(0)->node()) &&
         ends_in_convolutions(node->output(), kMostSteps);
}

// Returns true for the integer 0. Tracing makes a tensor of it.
bool is_zero(const Value* value) {
  if (const auto tensor = constant_tensor(value)) {
    return tensor->dim() == 0 && at::isIntegralType(tensor->scalar_type(), true) &&
           tensor->item<std::int64_t>() == 0;
  }
  return value->type()->kind() == c10::TypeKind::IntType && constant_number(value) == 0.0;
}

// The sum of a floating-point tensor with an integer has the tensor's type.
bool adds_zero(const Node* node, const SeenTensors& seen) {
  if (!is_kind(node, "aten::add") || !is_tensor(node->output())) return false;
  const auto src = seen.find(node->input(0));
  return src != seen.end() && at::isFloatingType(src->second.scalar_type) &&
         is_zero(node->input(1));
}

// Returns the type of a floating-point tensor, or nullopt.
std::optional<at::ScalarType> floating_type(const Value* value, const SeenTensors& seen) {
  const auto constant = constant_tensor(value);
  const auto it = seen.find(value);
  if (!constant && it == seen.end()) return std::nullopt;
  const at::ScalarType type = constant ? constant->scalar_type() : it->second.scalar_type;
  return at::isFloatingType(type) ? std::optional(type) : std::nullopt;
}

// Returns true for a cast of a floating-point tensor to the type that it has in the example. Models
// write it for autocast. For inputs of another type no plan runs.
bool is_idle_cast(const Node* node, const SeenTensors& seen) {
  if (!is_kind(node, "aten::to") || !node->hasNamedInput("dtype")) return false;
  const auto type = floating_type(node->input(0), seen);
  const Value* const wanted = node->namedInput("dtype");
  const auto number = constant_number(wanted);
  const bool keeps_type =
      is_kind(wanted->node(), "prim::dtype")
          ? floating_type(wanted->node()->input(0), seen) == type
          : type && number == static_cast<double>(static_cast<std::int64_t>(*type));
  const bool keeps_format =
      !node->hasNamedInput("memory_format") || is_none(node->namedInput("memory_format"));
  return type && keeps_type && keeps_format && !node->hasNamedInput("device") &&
         constant_bool(node->namedInput("copy")) == false;
}

}  // namespace

bool remove_identities(std::shared_ptr<Graph>& graph, const SeenTensors& seen) {
  std::optional<torch::jit::AliasDb> aliases;
  bool is_changed = false;
  const std::vector<Node*> nodes(graph->nodes().begin(), graph->nodes().end());
  for (Node* node : nodes) {
    const bool is_idle =
        is_idle_contiguous(node) || adds_zero(node, seen) || is_idle_cast(node, seen);
    if (!is_idle) continue;
    if (may_be_returned(node->output())) continue;  // the caller would get the source itself
    if (!aliases) aliases.emplace(graph);
    if (aliases->hasWriters(node->input(0)) || aliases->hasWriters(node->output())) continue;
    node->output()->replaceAllUsesWith(node->input(0));
    is_changed = true;
  }
  if (is_changed) torch::jit::EliminateDeadCode(graph);
  return is_changed;
}

}  // namespace torchalgo

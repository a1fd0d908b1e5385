// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/written_activations.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;

namespace {

// Returns x if the value is x + number, which nothing else reads, or null.
Value* sum_with(const Value* value, double number) {
  const Node* node = value->node();
  if (!is_kind(node, "aten::add") || !has_one_reader(value)) return nullptr;
  if (constant_number(node->input(2)) != 1.0) return nullptr;
  for (const std::size_t i : {0, 1}) {
    if (constant_scalar(node->input(i)) == number) return const_cast<Value*>(node->input(1 - i));
  }
  return nullptr;
}

// Returns x if the value is relu6(x + 3), which nothing else reads, or null.
Value* clamped_sum(const Value* value) {
  const Node* node = value->node();
  if (!has_one_reader(value)) return nullptr;
  const bool is_clamp = is_kind(node, "aten::hardtanh") || is_kind(node, "aten::clamp");
  if (!is_clamp && !is_kind(node, "aten::relu6")) return nullptr;
  if (is_clamp &&
      (constant_scalar(node->input(1)) != 0.0 || constant_scalar(node->input(2)) != 6.0)) {
    return nullptr;
  }
  return sum_with(node->input(0), 3.0);
}

// Returns the value that the node divides by 6, or null.
Value* dividend_by_six(const Node* node) {
  const auto number = node->inputs().size() > 1 ? constant_scalar(node->input(1)) : std::nullopt;
  if (!number) return nullptr;
  const bool divides = is_kind(node, "aten::div") && node->inputs().size() == 2 && *number == 6.0;
  // A factor of the model may have been rounded to f32.
  const bool multiplies = is_kind(node, "aten::mul") && std::abs(*number * 6.0 - 1.0) < 1e-7;
  return divides || multiplies ? const_cast<Value*>(node->input(0)) : nullptr;
}

struct Activation {
  Value* src = nullptr;
  const char* kind = nullptr;
};

// Returns x if the value is softplus(x), which nothing else reads, or null.
const Value* softplus_of(const Value* value) {
  const Node* node = value->node();
  if (!is_kind(node, "aten::softplus") || !has_one_reader(value)) return nullptr;
  const bool is_default =
      constant_number(node->input(1)) == 1.0 && constant_number(node->input(2)) == 20.0;
  return is_default ? node->input(0) : nullptr;
}

// Returns the activation that is x times `gate(x)`.
Activation gated(const Node* mul) {
  if (!is_kind(mul, "aten::mul") || !is_tensor(mul->input(1))) return {};
  for (const std::size_t i : {0, 1}) {
    Value* const x = const_cast<Value*>(mul->input(i));
    const Value* gate = mul->input(1 - i);
    if (!has_one_reader(gate) || gate->node()->inputs().empty()) continue;
    if (is_kind(gate->node(), "aten::tanh") && softplus_of(gate->node()->input(0)) == x) {
      return {x, "aten::mish"};
    }
    if (gate->node()->input(0) != x) continue;
    if (is_kind(gate->node(), "aten::sigmoid")) return {x, "aten::silu"};
    if (is_kind(gate->node(), "aten::hardsigmoid")) return {x, "aten::hardswish"};
  }
  return {};
}

// Returns x if the value is erf(x / sqrt(2)), which nothing else reads, or null.
const Value* scaled_erf_of(const Value* value) {
  const Node* node = value->node();
  if (!is_kind(node, "aten::erf") || !has_one_reader(value)) return nullptr;
  const Value* scaled = node->input(0);
  const bool divides = is_kind(scaled->node(), "aten::div") && scaled->node()->inputs().size() == 2;
  if ((!divides && !is_kind(scaled->node(), "aten::mul")) || !has_one_reader(scaled)) {
    return nullptr;
  }
  const auto number = constant_scalar(scaled->node()->input(1));
  // The model may have rounded the number to f32.
  const double wanted = divides ? std::sqrt(2.0) : std::sqrt(0.5);
  return number && std::abs(*number - wanted) < 1e-7 ? scaled->node()->input(0) : nullptr;
}

// Returns the factors of a product. A factor that is a product itself, which nothing else reads,
// counts as its own factors.
std::vector<Value*> factors_of(const Node* mul) {
  std::vector<Value*> factors;
  for (const Value* factor : mul->inputs()) {
    const bool is_product = is_kind(factor->node(), "aten::mul") && has_one_reader(factor);
    const auto parts = is_product ? factor->node()->inputs() : at::ArrayRef<const Value*>(factor);
    for (const Value* part : parts) factors.push_back(const_cast<Value*>(part));
  }
  return factors;
}

// Returns x if the node is 0.5 * x * (1 + erf(x / sqrt(2))), with its factors in any order, or
// null.
Value* gelu_source(const Node* node) {
  if (!is_kind(node, "aten::mul")) return nullptr;
  std::vector<Value*> factors = factors_of(node);
  const auto half = std::find_if(factors.begin(), factors.end(), [](const Value* factor) {
    return constant_scalar(factor) == 0.5;
  });
  if (factors.size() != 3 || half == factors.end()) return nullptr;
  factors.erase(half);
  for (const std::size_t i : {0, 1}) {
    const Value* erf = is_tensor(factors[i]) ? sum_with(factors[i], 1.0) : nullptr;
    if (erf != nullptr && scaled_erf_of(erf) == factors[1 - i]) return factors[1 - i];
  }
  return nullptr;
}

Activation read_activation(const Node* node) {
  if (Value* x = gelu_source(node)) return {x, "aten::gelu"};
  const Value* whole = dividend_by_six(node);
  if (whole == nullptr) return gated(node);
  if (Value* x = clamped_sum(whole)) return {x, "aten::hardsigmoid"};
  const Node* mul = whole->node();
  if (!is_kind(mul, "aten::mul") || !has_one_reader(whole)) return {};
  for (const std::size_t i : {0, 1}) {  // x * relu6(x + 3) / 6
    Value* const x = const_cast<Value*>(mul->input(i));
    if (is_tensor(mul->input(1)) && clamped_sum(mul->input(1 - i)) == x) {
      return {x, "aten::hardswish"};
    }
  }
  return {};
}

}  // namespace

bool name_written_activations(std::shared_ptr<Graph>& graph, const SeenTensors& seen) {
  std::optional<torch::jit::AliasDb> aliases;
  bool is_changed = false;
  const std::vector<Node*> nodes(graph->nodes().begin(), graph->nodes().end());
  for (Node* node : nodes) {
    const Activation found = read_activation(node);
    if (found.src == nullptr || !is_tensor(found.src)) continue;
    const auto src = seen.find(found.src);
    if (src == seen.end() || !at::isFloatingType(src->second.scalar_type)) continue;
    if (!aliases) aliases.emplace(graph);
    if (aliases->hasWriters(found.src) || aliases->hasWriters(node->output())) continue;
    const WithInsertPoint at(node);
    Value* const made = graph->insert(c10::Symbol::fromQualString(found.kind), {found.src});
    made->node()->copyMetadata(node);
    node->output()->replaceAllUsesWith(made);
    is_changed = true;
  }
  if (is_changed) torch::jit::EliminateDeadCode(graph);
  return is_changed;
}

}  // namespace torchalgo

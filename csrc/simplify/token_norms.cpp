// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/token_norms.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <optional>
#include <vector>

#include "simplify/shape_proofs.h"
#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

// Returns the batch norm of the tokens that `last` makes of their rows again, or null.
Node* norm_of_rows(const Node* last, const SeenTensors& seen) {
  if (!is_kind(last, "aten::reshape_as") && !is_kind(last, "aten::view_as")) return nullptr;
  Node* const norm = const_cast<Node*>(last->input(0)->node());
  if (!is_kind(norm, "aten::batch_norm")) return nullptr;
  if (constant_bool(norm->namedInput("training")) != false) return nullptr;
  const Node* flat = norm->input(0)->node();
  const bool keeps_tokens = is_kind(flat, "aten::flatten") && flat->input(0) == last->input(1) &&
                            rank_of(last->input(1), seen) == 3 &&
                            dim_argument(flat, "start_dim", 3) == 0 &&
                            dim_argument(flat, "end_dim", 3) == 1;
  return keeps_tokens ? norm : nullptr;
}

struct ScaleAndShift {
  at::Tensor scale, shift;  // [c], in the type of the running mean
};

std::optional<ScaleAndShift> constants_of(const Node* norm) {
  const auto mean = constant_tensor(norm->namedInput("running_mean"));
  const auto variance = constant_tensor(norm->namedInput("running_var"));
  const auto eps = constant_number(norm->namedInput("eps"));
  if (!mean || !variance || !eps) return std::nullopt;
  const auto wide = [&](const char* name,
                        const at::Tensor& otherwise) -> std::optional<at::Tensor> {
    if (is_none(norm->namedInput(name))) return otherwise;
    const auto tensor = constant_tensor(norm->namedInput(name));
    return tensor ? std::optional(tensor->to(at::kDouble)) : std::nullopt;
  };
  const at::Tensor center = mean->to(at::kDouble);
  const auto weight = wide("weight", at::ones_like(center));
  const auto bias = wide("bias", at::zeros_like(center));
  if (!weight || !bias) return std::nullopt;
  const at::Tensor scale = *weight * variance->to(at::kDouble).add(*eps).rsqrt();
  const at::Tensor shift = *bias - center * scale;
  return ScaleAndShift{scale.to(mean->scalar_type()), shift.to(mean->scalar_type())};
}

}  // namespace

bool name_token_norms(std::shared_ptr<Graph>& graph, const SeenTensors& seen) {
  std::optional<torch::jit::AliasDb> aliases;
  bool is_changed = false;
  const std::vector<Node*> nodes(graph->nodes().begin(), graph->nodes().end());
  for (Node* last : nodes) {
    Node* const norm = norm_of_rows(last, seen);
    if (norm == nullptr) continue;
    const auto constants = constants_of(norm);
    const auto tokens = seen.find(last->input(1));
    if (!constants || constants->scale.scalar_type() != tokens->second.scalar_type) continue;
    if (!aliases) aliases.emplace(graph);
    if (aliases->hasWriters(last->input(1)) || aliases->hasWriters(last->output())) continue;
    const torch::jit::WithInsertPoint at(last);
    Value* const scaled = graph->insert(torch::jit::aten::mul, {last->input(1), constants->scale});
    Value* const moved = graph->insert(torch::jit::aten::add, {scaled, constants->shift});
    scaled->node()->copyMetadata(norm);
    moved->node()->copyMetadata(norm);
    // The result of reshape_as is dense, and a view that follows may need this.
    Value* const dense = graph->insert(torch::jit::aten::contiguous, {moved});
    dense->node()->copyMetadata(norm);
    last->output()->replaceAllUsesWith(dense);
    is_changed = true;
  }
  if (is_changed) torch::jit::EliminateDeadCode(graph);
  return is_changed;
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <optional>
#include <vector>

#include "simplify/rewrite_each.h"
#include "simplify/shape_proofs.h"
#include "torchscript/constants.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Value;

namespace {

// Returns the batch norm of the tokens that `last` makes of their rows again, or null.
Node norm_of_rows(Node last, const SeenTensors& seen) {
  if (!last.is("aten::reshape_as", "aten::view_as")) return nullptr;
  const Node norm = last.input(0).node();
  if (!norm.is("aten::batch_norm")) return nullptr;
  if (constant_bool(norm.argument("training")) != false) return nullptr;
  Node flat = norm.input(0).node();
  const bool keeps_tokens = flat.is("aten::flatten") && flat.input(0) == last.input(1) &&
                            rank_of(last.input(1), seen) == 3 &&
                            dim_argument(flat, "start_dim", 3) == 0 &&
                            dim_argument(flat, "end_dim", 3) == 1;
  return keeps_tokens ? norm : nullptr;
}

struct TokenNorm : GraphPart {
  Node norm;
  at::Tensor scale, shift;  // [c], in the type of the running mean
};

// Returns the norm that `last` ends, or nullopt.
std::optional<TokenNorm> find_norm(Node last, const SeenTensors& seen) {
  const Node norm = norm_of_rows(last, seen);
  if (!norm) return std::nullopt;
  const auto mean = constant_tensor(norm.argument("running_mean"));
  const auto variance = constant_tensor(norm.argument("running_var"));
  const auto eps = constant_number(norm.argument("eps"));
  if (!mean || !variance || !eps) return std::nullopt;
  const auto wide = [&](const char* name,
                        const at::Tensor& otherwise) -> std::optional<at::Tensor> {
    if (is_none(norm.argument(name))) return otherwise;
    const auto tensor = constant_tensor(norm.argument(name));
    return tensor ? std::optional(tensor->to(at::kDouble)) : std::nullopt;
  };
  const at::Tensor center = mean->to(at::kDouble);
  const auto weight = wide("weight", at::ones_like(center));
  const auto bias = wide("bias", at::zeros_like(center));
  if (!weight || !bias) return std::nullopt;
  const at::Tensor scale = *weight * variance->to(at::kDouble).add(*eps).rsqrt();
  const at::Tensor shift = *bias - center * scale;
  const at::ScalarType type = mean->scalar_type();
  if (type != seen.at(last.input(1)).scalar_type) return std::nullopt;
  return TokenNorm{{last, {last.input(1)}}, norm, scale.to(type), shift.to(type)};
}

}  // namespace

bool name_token_norms(const Graph& graph, const SeenTensors& seen) {
  const auto find = [&](Node node) { return find_norm(node, seen); };
  return rewrite_each(graph, find, [](const TokenNorm& found, const script::Builder& in_front) {
    const script::Builder at = in_front.like(found.norm);
    const Value scaled = at.call("aten::mul", {found.reads[0], found.scale});
    const Value moved = at.call("aten::add", {scaled, found.shift});
    // The result of reshape_as is dense, and a view that follows may need this.
    return at.call("aten::contiguous", {moved});
  });
}

}  // namespace torchalgo

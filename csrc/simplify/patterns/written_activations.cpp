// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "simplify/pattern.h"
#include "simplify/rewrite_each.h"

namespace torchalgo {

namespace {

struct Activation : GraphPart {
  const char* kind;
};

// Returns the forms in which models write an activation of x, and its name.
std::vector<std::pair<Pattern, const char*>> written_forms() {
  constexpr double kRounded = 1e-7;  // the model may have rounded a number to f32
  const Pattern x = tensor("x");
  const auto of_x = [&](const char* kind) { return op(kind, {x}); };
  const auto sixth = [](const Pattern& whole) {
    return either({op("aten::div", {whole, number(6)}),
                   op("aten::mul", {whole, number(1.0 / 6, kRounded / 6)})});
  };
  const Pattern above = sum(x, number(3));
  const Pattern clamped =
      either({op("aten::relu6", {above}), op("aten::hardtanh", {above, number(0), number(6)}),
              op("aten::clamp", {above, number(0), number(6)})});
  const Pattern scaled = either({op("aten::div", {x, number(std::sqrt(2.0), kRounded)}),
                                 op("aten::mul", {x, number(std::sqrt(0.5), kRounded)})});
  const Pattern half = number(0.5), erf = sum(op("aten::erf", {scaled}), number(1));
  const Pattern softplus = op("aten::softplus", {x, number(1), number(20)});
  return {{product(product(half, x), erf), "aten::gelu"},
          {product(product(half, erf), x), "aten::gelu"},
          {product(product(x, erf), half), "aten::gelu"},
          {sixth(clamped), "aten::hardsigmoid"},
          {sixth(product(x, clamped)), "aten::hardswish"},
          {product(x, op("aten::tanh", {softplus})), "aten::mish"},
          {product(x, of_x("aten::sigmoid")), "aten::silu"},
          {product(x, of_x("aten::hardsigmoid")), "aten::hardswish"}};
}

}  // namespace

bool name_written_activations(const script::Graph& graph, const SeenTensors& seen) {
  const auto forms = written_forms();
  const auto find = [&](script::Node node) -> std::optional<Activation> {
    if (!node.is("aten::mul", "aten::div")) return std::nullopt;
    for (const auto& [form, kind] : forms) {
      const auto found = match(form, node.output());
      if (!found) continue;
      const auto src = seen.find(found->named.at("x"));
      if (src == seen.end() || !at::isFloatingType(src->second.scalar_type)) continue;
      return Activation{{node, {src->first}}, kind};
    }
    return std::nullopt;
  };
  return rewrite_each(graph, find, [](const Activation& found, const script::Builder& at) {
    return at.call(found.kind, {found.reads[0]});
  });
}

}  // namespace torchalgo

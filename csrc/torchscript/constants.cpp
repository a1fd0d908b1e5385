// SPDX-License-Identifier: BSD-3-Clause
#include "torchscript/constants.h"

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <array>

#include "ir/post_op.h"

namespace torchalgo {

using script::Value;

namespace {

// Returns the items of a list. After constant propagation it is one constant, before that a list of
// constants.
std::optional<std::vector<c10::IValue>> constant_list(Value value) {
  std::vector<c10::IValue> items;
  if (const auto constant = value.constant()) {
    if (!constant->isList()) return std::nullopt;
    const auto list = constant->toListRef();
    return std::vector<c10::IValue>(list.begin(), list.end());
  }
  if (!is_fixed_list(value)) return std::nullopt;
  for (Value input : value.node().inputs()) {
    auto item = input.constant();
    if (!item) return std::nullopt;
    items.push_back(std::move(*item));
  }
  return items;
}

}  // namespace

bool is_never_changed(Value list) {
  const auto& uses = list.uses();
  return std::all_of(uses.begin(), uses.end(), [](const script::Use& use) {
    if (use.user.is("prim::Return") && use.user.is_outermost()) return true;
    if (use.user.is("prim::TupleConstruct")) {
      return is_never_changed(use.user.output());
    }
    const auto* schema = use.user.schema();
    return schema != nullptr && !schema->is_mutable();
  });
}

bool is_fixed_list(Value list) {
  return list.node().is("prim::ListConstruct") && is_never_changed(list);
}

std::optional<at::Tensor> constant_tensor(Value value) {
  const auto constant = value.constant();
  if (!constant || !constant->isTensor() || !constant->toTensor().defined()) return std::nullopt;
  return constant->toTensor();
}

std::optional<bool> constant_bool(Value value) {
  const auto constant = value.constant();
  if (!constant || !constant->isBool()) return std::nullopt;
  return constant->toBool();
}

std::optional<double> constant_number(Value value) {
  const auto constant = value.constant();
  if (!constant) return std::nullopt;
  if (constant->isDouble()) return constant->toDouble();
  if (constant->isInt()) return static_cast<double>(constant->toInt());
  return std::nullopt;
}

std::optional<std::vector<std::int64_t>> constant_ints(Value value) {
  const auto list = constant_list(value);
  if (!list) {
    const auto constant = value.constant();
    if (constant && constant->isInt()) return std::vector<std::int64_t>{constant->toInt()};
    return std::nullopt;
  }
  std::vector<std::int64_t> ints;
  for (const c10::IValue& item : *list) {
    if (!item.isInt()) return std::nullopt;
    ints.push_back(item.toInt());
  }
  return ints;
}

std::optional<std::vector<double>> constant_floats(Value value) {
  const auto list = constant_list(value);
  if (!list) {
    const auto number = constant_number(value);
    if (number) return std::vector<double>{*number};
    return std::nullopt;
  }
  std::vector<double> floats;
  for (const c10::IValue& item : *list) {
    if (!item.isDouble()) return std::nullopt;
    floats.push_back(item.toDouble());
  }
  return floats;
}

bool is_none(Value value) {
  if (value.type()->kind() == c10::TypeKind::NoneType) return true;
  const auto constant = value.constant();
  return constant && constant->isNone();
}

bool is_kind(script::Node node, std::string_view kind) { return node.kind() == kind; }
bool is_aten(script::Node node) { return node.kind().starts_with("aten::"); }

bool is_convolution(script::Node node) {
  const std::string_view kind = node.kind();
  return kind.starts_with("aten::conv1d") || kind.starts_with("aten::conv2d") ||
         kind.starts_with("aten::conv3d") || kind.starts_with("aten::conv_transpose") ||
         kind == "aten::_convolution" || kind == "aten::convolution" ||
         kind == "aten::_convolution_mode";
}

std::optional<double> constant_scalar(Value value) {
  const std::optional<at::Tensor> tensor = constant_tensor(value);
  if (!tensor) return constant_number(value);
  const bool is_real = tensor->dim() == 0 && !tensor->is_complex();
  return is_real ? std::optional(tensor->item().toDouble()) : std::nullopt;
}

bool has_one_reader(Value value) { return value.uses().size() == 1; }

bool is_permute(script::Node node, const std::vector<std::int64_t>& dims) {
  if (!node.is("aten::permute")) return false;
  auto found = constant_ints(node.input(1));
  if (!found) return false;
  for (std::int64_t& dim : *found) dim = dim < 0 ? dim + std::ssize(*found) : dim;
  return found == dims;
}

bool is_elementwise_name(std::string_view name) {
  if (name == "hardtanh" || name == "softplus") return true;  // a clamp, and a part of mish
  return std::any_of(kPostOps.begin(), kPostOps.end(), [&](const auto& entry) {
    return is_activation(entry.first) && entry.second == name;
  });
}

bool is_elementwise(script::Node node) {
  if (!is_aten(node) || !is_elementwise_name(node.name())) return false;
  const auto inputs = node.inputs();
  return std::none_of(inputs.begin() + 1, inputs.end(), is_tensor);
}

bool is_constant_linear(script::Node node) {
  if (!node.is("aten::linear")) return false;
  const std::optional<at::Tensor> weight = constant_tensor(node.input(1));
  const bool has_plain_bias = is_none(node.input(2)) || constant_tensor(node.input(2));
  return weight && weight->dim() == 2 && has_plain_bias;
}

bool may_be_returned(Value value) {
  const auto& uses = value.uses();
  return std::any_of(uses.begin(), uses.end(), [](const script::Use& use) {
    return use.user.is("prim::Return", "prim::TupleConstruct", "prim::DictConstruct") ||
           (use.user.is("prim::ListConstruct") && may_be_returned(use.user.output()));
  });
}

bool is_tensor(Value value) { return value.type()->kind() == c10::TypeKind::TensorType; }

}  // namespace torchalgo

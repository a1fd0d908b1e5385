// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "torchscript/graph_view.h"

namespace torchalgo {

/// Each of these functions returns the constant that a value holds. It returns nullopt if the value
/// has another type or is known only in a run.
[[nodiscard]] std::optional<at::Tensor> constant_tensor(script::Value value);
[[nodiscard]] std::optional<bool> constant_bool(script::Value value);
[[nodiscard]] std::optional<double> constant_number(script::Value value);
[[nodiscard]] std::optional<std::vector<std::int64_t>> constant_ints(script::Value value);
[[nodiscard]] std::optional<std::vector<double>> constant_floats(script::Value value);
/// Returns the real number that the value holds, also as a tensor of rank 0: tracing makes one of a
/// number. Returns nullopt for anything else.
[[nodiscard]] std::optional<double> constant_scalar(script::Value value);
/// Returns true if the value is known to be None.
[[nodiscard]] bool is_none(script::Value value);

/// Returns true if all users of a list are ops whose schema changes no argument, or the caller,
/// perhaps through a tuple.
[[nodiscard]] bool is_never_changed(script::Value list);

/// Returns true if the value is a list that the graph makes from its elements and never changes.
[[nodiscard]] bool is_fixed_list(script::Value value);

/// Returns true if the node is the op `kind`, for example "aten::relu".
[[nodiscard]] bool is_kind(script::Node node, std::string_view kind);

/// Returns true if the node is an op of ATen.
[[nodiscard]] bool is_aten(script::Node node);

/// Returns true if the node is one of the ops `kinds`.
template <std::size_t N>
[[nodiscard]] bool is_any(script::Node node, const std::array<std::string_view, N>& kinds) {
  return std::find(kinds.begin(), kinds.end(), node.kind()) != kinds.end();
}

/// Returns true if the node is a convolution, transposed or not, under any of its names.
[[nodiscard]] bool is_convolution(script::Node node);

/// Returns true if the node permutes a tensor by the constant `dims`, which are not negative.
[[nodiscard]] bool is_permute(script::Node node, const std::vector<std::int64_t>& dims);

/// Returns true for the name of an op of ATen that is an activation, such as "silu". All such ops
/// make a new tensor; those that end with "_" change their argument.
[[nodiscard]] bool is_elementwise_name(std::string_view name);

/// Returns true if the op is an activation, which changes each element of its first argument by
/// itself, whatever the rank is. Its other arguments are numbers.
[[nodiscard]] bool is_elementwise(script::Node node);

/// Returns true for a linear layer with constant weights [k, c], and a constant bias or none.
[[nodiscard]] bool is_constant_linear(script::Node node);

/// Returns true if exactly one input of one node, or one result of the graph, is the value.
[[nodiscard]] bool has_one_reader(script::Value value);

/// Returns true if the caller may get the value itself, perhaps in a tuple, list or dict.
[[nodiscard]] bool may_be_returned(script::Value value);

/// Returns true if the value's type is Tensor (not an optional tensor).
[[nodiscard]] bool is_tensor(script::Value value);

}  // namespace torchalgo

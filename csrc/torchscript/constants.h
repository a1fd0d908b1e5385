// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace torchalgo {

/// What a value is known to hold before any run; nothing if that depends on one.
[[nodiscard]] std::optional<at::Tensor> constant_tensor(const torch::jit::Value* value);
[[nodiscard]] std::optional<bool> constant_bool(const torch::jit::Value* value);
[[nodiscard]] std::optional<double> constant_number(const torch::jit::Value* value);
[[nodiscard]] std::optional<std::vector<std::int64_t>> constant_ints(
    const torch::jit::Value* value);
[[nodiscard]] std::optional<std::vector<double>> constant_floats(const torch::jit::Value* value);
[[nodiscard]] bool is_none(const torch::jit::Value* value);

/// Whether it is a list made in place that nobody in the graph changes: all its users are ops that
/// say what they change, or the caller.
[[nodiscard]] bool is_fixed_list(const torch::jit::Value* value);

/// Whether it is the op `kind`, "aten::relu".
[[nodiscard]] bool is_kind(const torch::jit::Node* node, std::string_view kind);

/// Whether it holds one tensor (not an optional one).
[[nodiscard]] bool is_tensor(const torch::jit::Value* value);

}  // namespace torchalgo

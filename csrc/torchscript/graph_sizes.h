// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace torchalgo {

/// Returns the constant integer that a value holds; nullopt if it is another constant or none.
[[nodiscard]] std::optional<std::int64_t> constant_int(const torch::jit::Value* value);

/// Returns true if `list` is aten::size of the tensor.
[[nodiscard]] bool is_shape_of(const torch::jit::Value* list, const torch::jit::Value* tensor);

/// Returns the dimension of `tensor`, which has rank 4, whose size the number is. Returns nullopt
/// if the number is computed in another way.
[[nodiscard]] std::optional<std::int64_t> dimension_of(const torch::jit::Value* number,
                                                       const torch::jit::Value* tensor);

/// Returns true if `list` holds the height and the width of `tensor`, which has rank 4, in every
/// run.
[[nodiscard]] bool is_image_size_of(const torch::jit::Value* list, const torch::jit::Value* tensor);

/// Returns true for aten::view and aten::reshape.
[[nodiscard]] bool is_view(const torch::jit::Node* node);

/// Returns the sizes that a view asks for. Returns no sizes if the graph makes their list in
/// another way than by listing them.
[[nodiscard]] std::vector<const torch::jit::Value*> sizes_of_view(const torch::jit::Node* view);

/// Returns true for a slice that takes everything, such as x[:].
[[nodiscard]] bool is_whole_slice(const torch::jit::Node* node);

}  // namespace torchalgo

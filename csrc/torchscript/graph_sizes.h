// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "torchscript/graph_view.h"

namespace torchalgo {

/// Returns the constant integer that a value holds; nullopt if it is another constant or none.
[[nodiscard]] std::optional<std::int64_t> constant_int(script::Value value);

/// Returns true if `list` is aten::size of the tensor.
[[nodiscard]] bool is_shape_of(script::Value list, script::Value tensor);

/// A dimension of a tensor as the graph names it: a negative one counts from the end, and one that
/// is no constant is nullopt.
struct Dimension {
  script::Value tensor;
  std::optional<std::int64_t> dim;
};

/// Returns the dimension whose size the number is. Returns a null tensor if the number is computed
/// in another way.
[[nodiscard]] Dimension size_source(script::Value number);

/// Returns the dimension of `tensor`, which has rank 4, whose size the number is. Returns nullopt
/// if the number is computed in another way.
[[nodiscard]] std::optional<std::int64_t> dimension_of(script::Value number, script::Value tensor);

/// Returns true if `list` holds the height and the width of `tensor`, which has rank 4, in every
/// run.
[[nodiscard]] bool is_image_size_of(script::Value list, script::Value tensor);

/// Returns true for aten::view and aten::reshape.
[[nodiscard]] bool is_view(script::Node node);

/// Returns the sizes that a view asks for. Returns no sizes if the graph makes their list in
/// another way than by listing them.
[[nodiscard]] std::vector<script::Value> sizes_of_view(script::Node view);

/// Returns true for a slice that takes everything, such as x[:].
[[nodiscard]] bool is_whole_slice(script::Node node);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "torchscript/graph_view.h"

namespace torchalgo {

/// Returns true if the node reads the sizes, the type or the device of one tensor and none of its
/// elements: aten::size, aten::len, aten::numel and the like.
[[nodiscard]] bool is_shape_query(script::Node node);

/// Inserts nodes that compute the result of `query` for a tensor of rank 4 from the same tensor in
/// a blocked layout, [n, ceil(c / B), h, w, B].
///
/// @param channels  the number of channels, which no size of `blocked` tells.
/// @return  the result. `query` itself stays as it is.
[[nodiscard]] torch::jit::Value* answer_shape_query(script::Node query, script::Value blocked,
                                                    std::int64_t channels);

}  // namespace torchalgo

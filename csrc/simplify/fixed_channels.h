// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "torchscript/graph_view.h"

namespace torchalgo {

/// Returns true if the channels of the tensor follow from weights, so that they are equal for all
/// inputs. Above a tensor of images stand convolutions and ops that keep the channels.
///
/// @param sizes  of the tensor in a run, [n, c, ...].
[[nodiscard]] bool has_fixed_channels(script::Value value, const std::vector<std::int64_t>& sizes);

/// Returns true if a convolution reads the tensor, whose weights fix its channels.
///
/// @param sizes  of the tensor in a run, [n, c, ...].
[[nodiscard]] bool is_read_by_convolution(script::Value value,
                                          const std::vector<std::int64_t>& sizes);

}  // namespace torchalgo

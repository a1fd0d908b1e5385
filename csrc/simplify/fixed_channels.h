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

/// Returns true if has_fixed_channels(src), or if a convolution reads `dst`. An op makes `dst` of
/// `src` and keeps the channels. They may be the same tensor.
///
/// @param sizes  of `src` in a run, [n, c, ...].
[[nodiscard]] bool are_channels_fixed(script::Value src, script::Value dst,
                                      const std::vector<std::int64_t>& sizes);

}  // namespace torchalgo

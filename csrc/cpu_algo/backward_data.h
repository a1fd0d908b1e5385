// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "provider/algorithm.h"

namespace torchalgo::cpu {

/// Returns the forward convolution that computes `conv`, a kBackwardData problem of stride 1. It
/// reads diff_dst. Its weights are those of `conv` turned by 180 degrees, with c and k exchanged.
/// Returns nullopt if a stride is not 1 or a padding exceeds dilation * (filter - 1).
[[nodiscard]] std::optional<ConvProblem> as_forward(const ConvProblem& conv);

/// Returns the weights with k and c exchanged in each group and the filters rotated by 180 degrees.
[[nodiscard]] at::Tensor turned(const at::Tensor& weights, std::int64_t groups);

/// Extends `forward` to gradients with respect to src, and so to transposed convolutions, if
/// as_forward() has a forward convolution for them. With a stride, strided_parts() must have them,
/// and the results of several forward convolutions are put together. The names stay the same,
/// because the direction is part of the problem.
[[nodiscard]] Algorithm with_backward_data(Algorithm forward);

}  // namespace torchalgo::cpu

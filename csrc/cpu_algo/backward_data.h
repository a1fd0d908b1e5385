// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "provider/algorithm.h"

namespace torchalgo::cpu {

/// The forward convolution that computes `conv`, a kBackwardData problem of stride 1: it reads
/// diff_dst, its weights are those of `conv` turned by 180 degrees with c and k exchanged. Nothing
/// if a stride is not 1 or a padding exceeds dilation * (filter - 1).
[[nodiscard]] std::optional<ConvProblem> as_forward(const ConvProblem& conv);

/// `forward` extended to the gradient with respect to src (and so to transposed convolutions) where
/// that is a forward convolution. Names stay: a direction is part of the problem.
[[nodiscard]] Algorithm with_backward_data(Algorithm forward);

}  // namespace torchalgo::cpu

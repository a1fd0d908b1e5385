// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "ir/problem.h"
#include "provider/weights.h"

namespace torchalgo {

// Operations of a training step by ATen, on strided tensors of one type. They serve as reference
// and as fallback.

/// Computes a step of a batch norm without its epilogue. `src` holds the inputs of the step.
[[nodiscard]] at::Tensor batch_norm_step(const BatchNormProblem& step,
                                         std::span<const at::Tensor> src,
                                         const LayerWeights& weights);

/// Returns the sums of channels. `src` holds the inputs of the problem.
[[nodiscard]] at::Tensor channel_sums(const ChannelSumsProblem& problem,
                                      std::span<const at::Tensor> src);

/// Returns the gradient of a pooling's input. `src` holds diff_dst and, for a maximum, the input.
[[nodiscard]] at::Tensor pool_gradient(const PoolProblem& pool, std::span<const at::Tensor> src);

}  // namespace torchalgo

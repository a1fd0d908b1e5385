// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "ir/problem.h"

namespace torchalgo {

/// Computes an attention with PyTorch's ops, in the type of `src`: queries, keys, values, and the
/// bias if there is one. The tensors may have other sizes than `problem`; its kind, scale and
/// epsilon count.
[[nodiscard]] at::Tensor attend(const AttentionProblem& problem, std::span<const at::Tensor> src);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "ir/problem.h"

namespace torchalgo {

/// Returns activation(src). @throws InternalError if `op` is no activation.
[[nodiscard]] at::Tensor activated(const at::Tensor& src, PostOp op);

/// dst = activation(dst). @throws InternalError if `op` is no activation.
void apply_activation(at::Tensor& dst, PostOp op);

/// Applies `epilogue` in its order, in place, one ATen op each; `bias` [channels of dst] and
/// `residual` [as dst] are read where it names them.
void apply_epilogue(at::Tensor& dst, const Epilogue& epilogue, const at::Tensor& bias,
                    const at::Tensor& residual);

}  // namespace torchalgo

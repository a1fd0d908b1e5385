// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "ir/problem.h"

namespace torchalgo {

/// Returns activation(src). @throws InternalError if `op` is no activation.
[[nodiscard]] at::Tensor activated(const at::Tensor& src, const PostOp& op);

/// Applies the activation `op` to `dst` in place. @throws InternalError if `op` is no activation.
void apply_activation(at::Tensor& dst, const PostOp& op);

/// Returns diff_dst * activation'(x), with torch's rules for kinks and NaNs.
/// @throws InternalError if `op` is no activation.
[[nodiscard]] at::Tensor activation_gradient(const at::Tensor& diff_dst, const at::Tensor& x,
                                             const PostOp& op);

/// Applies the post-ops of `epilogue` to `dst` in place, in order, with one ATen op each. `bias`
/// [channels of dst] is read for kBias, `residual` [as dst] for kAdd.
void apply_epilogue(at::Tensor& dst, const Epilogue& epilogue, const at::Tensor& bias,
                    const at::Tensor& residual);

}  // namespace torchalgo

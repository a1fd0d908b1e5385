// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "ir/problem.h"

namespace torchalgo {

/// Computes a norm over dimension `dim` with PyTorch's ops, in the type of `src`.
///
/// @param scale, shift  [c], where c is the size of `dim`
[[nodiscard]] at::Tensor channel_norm(LayerNormKind kind, const at::Tensor& src,
                                      const at::Tensor& scale, const at::Tensor& shift,
                                      double epsilon, std::int64_t dim);

}  // namespace torchalgo

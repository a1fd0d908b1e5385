// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "ir/problem.h"

namespace torchalgo {

/// Returns the zeros (h, w) that a 2-D convolution has on both sides of its image. at::convolution
/// takes these as its padding.
[[nodiscard]] at::DimVector even_padding(const ConvProblem& conv);

/// Returns `src` with the zeros that a 2-D convolution has on one side of its image only. If there
/// are none, this is `src` itself.
[[nodiscard]] at::Tensor with_uneven_padding(const ConvProblem& conv, const at::Tensor& src);

}  // namespace torchalgo

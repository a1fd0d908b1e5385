// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ir/problem.h"
#include "simplify/insert_layer.h"
#include "torchscript/graph_view.h"

namespace torchalgo {

/// Returns the weights [k, c] of a linear layer, which are constant, as filters [k, c, 1, 1].
[[nodiscard]] at::Tensor filters_of(script::Node linear);

/// Inserts the 1x1 convolution with `filters` that computes a linear layer for an image.
[[nodiscard]] script::Value insert_convolution(const script::Builder& at, script::Node linear,
                                               script::Value image, script::Value filters);

/// Inserts a torchalgo::channel_norm over dimension `dim` of `src`.
///
/// @param scale, shift  [c], where c is the size of `dim`. An undefined shift is 0.
/// @return  the result.
[[nodiscard]] script::Value insert_channel_norm(const script::Builder& at, LayerNormKind kind,
                                                script::Value src, const at::Tensor& scale,
                                                const at::Tensor& shift, double eps,
                                                std::int64_t dim);

}  // namespace torchalgo

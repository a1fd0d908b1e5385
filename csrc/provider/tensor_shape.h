// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ir/layout.h"

namespace torchalgo {

/// Returns the strides of a dense tensor of `sizes` in nchw (row-major, any rank) or nhwc (channels
/// innermost, rank 4 or 5).
[[nodiscard]] at::DimVector dense_strides(at::IntArrayRef sizes, Layout layout);

/// Sizes and strides in memory of a dense tensor.
struct TensorShape {
  at::DimVector sizes, strides;
};

/// Returns the shape in memory of a tensor of logical `sizes` ([n, c, (d,) h, w] or [n, c]) in
/// `layout`.
[[nodiscard]] TensorShape shape_in(const std::vector<std::int64_t>& sizes, Layout layout);

}  // namespace torchalgo

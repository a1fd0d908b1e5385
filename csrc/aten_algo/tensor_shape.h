// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ir/layout.h"

namespace torchalgo {

/// Sizes and strides in memory of a dense tensor.
struct TensorShape {
  at::DimVector sizes, strides;
};

/// The shape in memory of a tensor of logical `sizes` ([n, c, (d,) h, w] or [n, c]) in `layout`.
[[nodiscard]] TensorShape shape_in(const std::vector<std::int64_t>& sizes, Layout layout);

}  // namespace torchalgo

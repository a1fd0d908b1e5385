// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Tensors for packed weights and biases.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cpu_algo/with_tensors.h"
#include "provider/algorithm.h"
#include "standalone/conv.h"

namespace torchalgo::cpu {

/// Allocates a tensor of zeros. It is declared here because ATen/ops/zeros.h takes seconds to
/// compile.
[[nodiscard]] at::Tensor zero_floats(at::IntArrayRef sizes);

/// Returns `bias` followed by zeros up to `count` floats, or all zeros if `bias` is undefined.
[[nodiscard]] at::Tensor pad_bias(const at::Tensor& bias, std::int64_t count);

/// Returns `primitive` with another workspace.
[[nodiscard]] Primitive with_workspace(Primitive primitive, std::int64_t bytes);

}  // namespace torchalgo::cpu

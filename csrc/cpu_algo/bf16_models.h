// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/algorithm.h"

namespace torchalgo::cpu {

/// Lets `algorithm` serve a model in bf16 with the kernels that it has for nhwc.bf16 in a model in
/// f32: tensors of the model's own type in nhwc are the same memory. Other algorithms stay as they
/// are.
void serve_bf16_models(Algorithm& algorithm);

/// Returns the same operation in another type.
[[nodiscard]] Problem with_dtype(const Problem& problem, DType dtype);

}  // namespace torchalgo::cpu

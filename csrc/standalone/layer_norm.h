// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include "ir/layout.h"
#include "ir/plain_kernel.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// Binds an f32 norm over channels with src and dst in `layout`: nchw, nhwc or nChw16c. `isa` names
/// the instruction set of the kernels. It reads the model's own weights: the scale, and the shift
/// as the bias.
[[nodiscard]] PlainKernel bind_layer_norm(const LayerNormProblem& norm, Layout layout,
                                          std::string_view isa);

}  // namespace torchalgo::cpu

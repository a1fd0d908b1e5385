// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>

#include "ir/layout.h"
#include "ir/plain_kernel.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// Returns the bytes of workspace that a group norm needs in `layout`.
[[nodiscard]] std::int64_t group_norm_workspace_bytes(const GroupNormProblem& norm, Layout layout);

/// Binds an f32 group norm with src and dst in `layout`: nchw, nhwc or nChw16c. `isa` names the
/// instruction set of the kernels. The epilogue may hold one activation. The kernel reads the
/// model's own weights: the scale, and the shift as the bias.
[[nodiscard]] PlainKernel bind_group_norm(const GroupNormProblem& norm, Layout layout,
                                          std::string_view isa);

}  // namespace torchalgo::cpu

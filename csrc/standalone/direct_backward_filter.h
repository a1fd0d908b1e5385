// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>

#include "ir/plain_kernel.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// Binds the gradient of a convolution without dilation with respect to its weights. src and
/// diff_dst lie in nChw16c. Several groups have whole blocks of 16 channels each. The result does
/// not depend on the number of threads.
[[nodiscard]] PlainKernel bind_direct_backward_filter(const ConvProblem& conv, std::string_view isa,
                                                      std::int64_t threads);

}  // namespace torchalgo::cpu

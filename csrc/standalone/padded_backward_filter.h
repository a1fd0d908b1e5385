// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>

#include "ir/layout.h"
#include "ir/plain_kernel.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// Binds the gradient with respect to the weights of a convolution of one group and few input
/// channels, without dilation. src lies in `src`, nchw or nhwc, and diff_dst in nChw16c. The result
/// does not depend on the number of threads.
[[nodiscard]] PlainKernel bind_stem_backward_filter(const ConvProblem& conv, Layout src,
                                                    std::string_view isa, std::int64_t threads);

/// Binds the gradient with respect to the weights of a convolution with one filter per channel,
/// without dilation. Both tensors lie in `layout`: nChw16c or, with 16 channels or more, nhwc.
[[nodiscard]] PlainKernel bind_depthwise_backward_filter(const ConvProblem& conv, Layout layout,
                                                         std::string_view isa,
                                                         std::int64_t threads);

}  // namespace torchalgo::cpu

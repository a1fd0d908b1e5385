// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>

#include "ir/layout.h"
#include "ir/plain_kernel.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// Returns the bytes of the transformed tiles, of which at most `most_tiles` exist at a time.
[[nodiscard]] std::int64_t winograd_backward_filter_tile_bytes(const ConvProblem& conv,
                                                               std::int64_t most_tiles);

/// Binds the gradient of a 3x3 convolution of stride 1, without dilation, with respect to its
/// weights. src and diff_dst lie in `layout`, nChw16c or nhwc. At most `most_tiles` tiles are
/// transformed at a time. The bits of the result may depend on `threads`, but on nothing else.
[[nodiscard]] PlainKernel bind_winograd_backward_filter(const ConvProblem& conv, Layout layout,
                                                        std::int64_t most_tiles,
                                                        std::string_view isa, std::int64_t threads);

}  // namespace torchalgo::cpu

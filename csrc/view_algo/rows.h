// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// One function per row of view_algorithms(), each defined in the file of its name.

#include "provider/algorithm.h"

namespace torchalgo::view {

/// Another name for the same memory, where both layouts order it alike: any type, 4-D or 5-D.
[[nodiscard]] Algorithm relabel();

/// Channels of a tensor of n = 1 as the memory in which they lie: nchw, and f32 in blocks that the
/// part fills.
[[nodiscard]] Algorithm slice();

/// The memory that its inputs share: f32, n = 1, nChw16c, each input on whole blocks. Inputs that
/// do not lie side by side are copied, which a plan never leads to; where an input had to be
/// computed elsewhere (another machine, another size) it keeps the result right.
[[nodiscard]] Algorithm concat();

}  // namespace torchalgo::view

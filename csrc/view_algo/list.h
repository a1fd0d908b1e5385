// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "provider/algorithm.h"

namespace torchalgo {

/// Returns the algorithms that need no work because the result is in memory already (ir/view.h): a
/// change of layout that moves nothing, a concatenation whose inputs were written side by side.
/// They return memory of their inputs, so only ops whose schema says so may run them.
[[nodiscard]] const Algorithms& view_algorithms();

}  // namespace torchalgo

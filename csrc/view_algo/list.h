// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/algorithm.h"

namespace torchalgo {

/// Returns the algorithms that do no work because the result is in memory already (ir/view.h).
/// Examples are a change of layout that moves nothing and a concatenation whose inputs were written
/// side by side. They return memory of their inputs, so only ops whose schema declares this alias
/// may run them.
[[nodiscard]] const Algorithms& view_algorithms();

}  // namespace torchalgo

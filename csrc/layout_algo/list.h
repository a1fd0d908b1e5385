// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "provider/algorithm.h"

namespace torchalgo {

/// Changes of layout, the edges of the plan's problem: rows for TransformProblem, each offering the
/// one primitive from -> to.
[[nodiscard]] const Algorithms& layout_algorithms();

}  // namespace torchalgo

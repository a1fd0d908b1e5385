// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/algorithm.h"

namespace torchalgo {

/// Returns every algorithm of every provider, in a fixed order. No other code knows all providers.
[[nodiscard]] const Algorithms& all_algorithms();

}  // namespace torchalgo

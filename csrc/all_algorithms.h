// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "provider/algorithm.h"

namespace torchalgo {

/// Every algorithm of every provider, in a fixed order; the one place that knows all providers.
[[nodiscard]] const Algorithms& all_algorithms();

}  // namespace torchalgo

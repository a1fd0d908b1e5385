// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include "ir/algorithm.h"

namespace torchalgo {

/// Returns every algorithm of every provider, in a fixed order. No other code knows all providers.
[[nodiscard]] const Algorithms& all_algorithms();

/// Returns true if this library's own code runs `primitive`, on the threads that it is given. False
/// if torch or another library runs any of it. A view runs nothing, so the result is true.
[[nodiscard]] bool has_own_kernel(std::string_view primitive);

}  // namespace torchalgo

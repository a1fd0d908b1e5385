// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <functional>

namespace torchalgo {

/// Called with the index of what is run next, so that one who watches from another process knows
/// what a crash or an endless loop belongs to.
using Announce = std::function<void(std::size_t)>;

}  // namespace torchalgo

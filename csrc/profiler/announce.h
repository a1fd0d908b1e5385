// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <functional>

namespace torchalgo {

/// A callback that gets the index of the task that is run next. A watching process can then tell
/// which task caused a crash or an endless loop.
using Announce = std::function<void(std::size_t)>;

}  // namespace torchalgo

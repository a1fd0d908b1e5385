// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>

namespace torchalgo {

/// Whether flush_caches does anything on this processor (x86 with CLFLUSHOPT).
[[nodiscard]] bool can_flush_caches();

/// Writes `bytes` from `data` on back to memory, and takes them out of all caches of all cores.
void flush_caches(const void* data, std::size_t bytes);

}  // namespace torchalgo

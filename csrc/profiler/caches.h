// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>

#include "provider/device.h"

namespace torchalgo {

/// As much of a last cache as weights can hope to keep from one inference to the next: activations
/// pass it too, and other programs. On a shared machine with a last cache of 32 MiB the fully
/// connected layers of MobileNets, of 14 to 22 MB, ran in the net as they do from memory.
inline constexpr std::int64_t kLargeCacheBytes = 8 << 20;

/// Where a layer of a model finds its weights, which it last used one inference ago.
enum class WeightsIn : std::uint8_t { kL2, kPastL2, kNoCache };

/// Of a model whose weights take so many bytes.
[[nodiscard]] WeightsIn weights_in(std::int64_t bytes, const Device& device);

/// "l2", "past l2" or "no cache".
[[nodiscard]] const char* to_string(WeightsIn where);

/// Whether flush_caches does anything on this processor (x86 with CLFLUSHOPT).
[[nodiscard]] bool can_flush_caches();

/// Writes `bytes` from `data` on back to memory, and takes them out of all caches of all cores.
void flush_caches(const void* data, std::size_t bytes);

/// Reads `bytes` of other data, a part on each thread of at::parallel_for: what lay in caches
/// of half that size is there no longer. The data live as long as the thread that asks.
void sweep_caches(std::int64_t bytes);

}  // namespace torchalgo

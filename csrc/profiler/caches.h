// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>

#include "ir/device.h"

namespace torchalgo {

/// The part of the last-level cache that weights can keep from one inference to the next.
/// Activations and other programs use this cache as well. On a shared machine with a last-level
/// cache of 32 MiB, the fully connected layers of MobileNets (14 to 22 MB) ran in the net at the
/// speed of main memory.
inline constexpr std::int64_t kLargeCacheBytes = 8 << 20;

/// The cache level in which a layer finds its weights, which it last used one inference ago.
/// kChanged: in training, the weights have changed since then, so each run packs them.
enum class WeightsIn : std::uint8_t { kL2, kPastL2, kNoCache, kChanged };

/// Returns the cache level for a model whose weights take `bytes` in total; kChanged if `bytes` is
/// kChangedWeights.
inline constexpr std::int64_t kChangedWeights = -1;
[[nodiscard]] WeightsIn weights_in(std::int64_t bytes, const Device& device);

/// Returns "l2", "past l2", "no cache" or "changed".
[[nodiscard]] const char* to_string(WeightsIn where);

/// Returns true if flush_caches has an effect on this processor (x86 with CLFLUSHOPT).
[[nodiscard]] bool can_flush_caches();

/// Writes `bytes` from `data` on back to memory and evicts them from all caches of all cores.
void flush_caches(const void* data, std::size_t bytes);

/// Reads `bytes` of unrelated data, a part on each thread of at::parallel_for. This evicts the
/// previous contents of caches of half that size. The data live as long as the calling thread.
void sweep_caches(std::int64_t bytes);

}  // namespace torchalgo

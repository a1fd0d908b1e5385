// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>

namespace torchalgo {

/// Returns the 64-bit FNV-1a hash of `text`, for ids that are written to disk. It is the same on
/// every machine and in every version. It does not protect against crafted collisions. Source:
/// Fowler, Noll, Vo; IETF draft-eastlake-fnv.
[[nodiscard]] constexpr std::uint64_t fnv1a64(std::string_view text,
                                              std::uint64_t seed = 0xcbf29ce484222325ULL) {
  std::uint64_t hash = seed;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace torchalgo

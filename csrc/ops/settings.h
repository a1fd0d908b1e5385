// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace torchalgo {

/// Whether a layer that cannot run its planned primitive raises Error instead of falling back.
/// Process-wide, off at the start. Returns the old value.
bool set_strict(bool strict);
[[nodiscard]] bool is_strict();

/// How often a layer ran something else than planned, and why the last time.
struct Fallback {
  std::int64_t count = 0;
  std::string reason;
  bool operator==(const Fallback&) const = default;
};

/// Fallbacks by layer since the start or the last reset_fallbacks(). Another input size that the
/// planned primitive serves is none.
[[nodiscard]] std::map<std::string, Fallback> fallbacks();
void reset_fallbacks();
void count_fallback(const std::string& layer, const std::string& reason);

}  // namespace torchalgo

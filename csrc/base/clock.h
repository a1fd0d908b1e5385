// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>

namespace torchalgo {

/// Returns the time of the steady clock in ns. It counts from an unspecified time in the past.
inline std::int64_t steady_now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace torchalgo

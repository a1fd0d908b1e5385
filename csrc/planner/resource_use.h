// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace torchalgo::planner {

inline constexpr std::size_t kMostResources = 2;

/// The use of each limited resource; 0 of those that are not limited.
using ResourceUse = std::array<std::int64_t, kMostResources>;

/// Returns true if `a` is at most `b` for every resource.
[[nodiscard]] inline bool is_within(const ResourceUse& a, const ResourceUse& b) {
  for (std::size_t r = 0; r < kMostResources; ++r) {
    if (a[r] > b[r]) return false;
  }
  return true;
}

[[nodiscard]] inline ResourceUse operator+(const ResourceUse& a, const ResourceUse& b) {
  ResourceUse sum = a;
  for (std::size_t r = 0; r < kMostResources; ++r) sum[r] += b[r];
  return sum;
}

}  // namespace torchalgo::planner

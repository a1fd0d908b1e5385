// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace torchalgo::planner {

inline constexpr std::size_t kMostResources = 2;

/// What something takes of each limited resource; 0 of those that are not limited.
using Uses = std::array<std::int64_t, kMostResources>;

/// Whether `a` takes no more than `b` of anything.
[[nodiscard]] inline bool is_within(const Uses& a, const Uses& b) {
  for (std::size_t r = 0; r < kMostResources; ++r) {
    if (a[r] > b[r]) return false;
  }
  return true;
}

[[nodiscard]] inline Uses operator+(const Uses& a, const Uses& b) {
  Uses sum = a;
  for (std::size_t r = 0; r < kMostResources; ++r) sum[r] += b[r];
  return sum;
}

}  // namespace torchalgo::planner

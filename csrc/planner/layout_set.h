// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "ir/layout.h"

namespace torchalgo::planner {

/// The set of layouts in which a value exists or is read: one bit per enumerator of Layout.
using LayoutSet = std::uint8_t;

inline constexpr int kLayoutCount = static_cast<int>(kAllLayouts.size());
inline constexpr int kLayoutSetCount = 1 << kLayoutCount;

[[nodiscard]] constexpr int index_of(Layout layout) { return static_cast<int>(layout); }

[[nodiscard]] constexpr LayoutSet set_of(Layout layout) {
  return static_cast<LayoutSet>(1U << index_of(layout));
}

[[nodiscard]] constexpr bool includes(LayoutSet set, LayoutSet subset) {
  return (set & subset) == subset;
}

}  // namespace torchalgo::planner

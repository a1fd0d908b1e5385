// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "ir/layout.h"

namespace torchalgo::planner {

/// The set of layouts in which a value exists or is read: one bit per enumerator of Layout.
using LayoutSet = std::uint8_t;

[[nodiscard]] constexpr int index_of(Layout layout) { return static_cast<int>(layout); }

/// The size of a table by index_of. A number without a layout counts too; nothing reads its entry.
inline constexpr int kLayoutCount = index_of(kAllLayouts.back()) + 1;
inline constexpr int kLayoutSetCount = 1 << kLayoutCount;

[[nodiscard]] constexpr LayoutSet set_of(Layout layout) {
  return static_cast<LayoutSet>(1U << index_of(layout));
}

[[nodiscard]] constexpr bool includes(LayoutSet set, LayoutSet subset) {
  return (set & subset) == subset;
}

}  // namespace torchalgo::planner

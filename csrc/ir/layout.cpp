// SPDX-License-Identifier: BSD-3-Clause
#include "ir/layout.h"

namespace torchalgo {

std::string_view to_string(Layout layout) {
  switch (layout) {
    case Layout::kNchw:
      return "nchw";
    case Layout::kNhwc:
      return "nhwc";
    case Layout::kNChw8c:
      return "nChw8c";
    case Layout::kNChw16c:
      return "nChw16c";
  }
  return "?";
}

std::optional<Layout> parse_layout(std::string_view text) {
  for (const Layout layout : kAllLayouts) {
    if (to_string(layout) == text) return layout;
  }
  return std::nullopt;
}

}  // namespace torchalgo

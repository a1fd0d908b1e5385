// SPDX-License-Identifier: BSD-3-Clause
#include "ir/layout.h"

#include <fmt/format.h>

namespace torchalgo {

std::string_view to_string(Layout layout) {
  switch (layout) {
    case Layout::kNchw:
      return "nchw";
    case Layout::kNhwc:
      return "nhwc";
    case Layout::kNhwcBf16:
      return "nhwc.bf16";
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

std::string refuse_layout(std::string_view text) {
  // Files of older versions may name it.
  const std::string_view reason =
      text == "nChw8c" ? "no longer a layout, since no algorithm used it" : "no layout";
  return fmt::format("'{}' is {}: expected nchw, nhwc, nhwc.bf16 or nChw16c", text, reason);
}

}  // namespace torchalgo

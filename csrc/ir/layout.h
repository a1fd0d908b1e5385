// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace torchalgo {

/// The order in which a tensor of logical sizes [n, c, (d,) h, w] lies in memory. The names are
/// oneDNN's.
///
/// kNchw and kNhwc are torch tensors of the logical sizes, contiguous or channels_last. Any ATen op
/// accepts them. A [n, c, w] tensor counts as h = 1. kNChw16c is a contiguous 5-D float tensor
/// [n, ceil(c / 16), h, w, 16]. Every writer sets its pad lanes to zero. Only torchalgo's ops read
/// or write it, and each op knows the logical c. The numbers are those of the bits in a set of
/// layouts (docs/pbqp.md). 2 belonged to nChw8c (docs/decisions/0028).
enum class Layout : std::uint8_t { kNchw = 0, kNhwc = 1, kNChw16c = 3 };

inline constexpr std::array kAllLayouts = {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c};

/// Returns "nchw", "nhwc" or "nChw16c".
[[nodiscard]] std::string_view to_string(Layout layout);

/// Returns the layout of this name, or nullopt for any other text.
[[nodiscard]] std::optional<Layout> parse_layout(std::string_view text);

/// Returns the reason why parse_layout refuses `text`, and the names that it accepts.
[[nodiscard]] std::string refuse_layout(std::string_view text);

/// Returns the channels per block: 16, or 1 for the strided layouts.
[[nodiscard]] constexpr int block_size(Layout layout) {
  return layout == Layout::kNChw16c ? 16 : 1;
}

[[nodiscard]] constexpr bool is_blocked(Layout layout) { return block_size(layout) > 1; }

/// Returns the elements in memory of a tensor with `spatial` = d * h * w positions, pad lanes
/// included.
[[nodiscard]] constexpr std::int64_t element_count(Layout layout, std::int64_t n, std::int64_t c,
                                                   std::int64_t spatial) {
  const std::int64_t block = block_size(layout);
  return n * ((c + block - 1) / block) * block * spatial;
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace torchalgo {

/// How a tensor of logical sizes [n, c, (d,) h, w] lies in memory; names as in oneDNN.
///
/// kNchw and kNhwc are strided torch tensors of the logical sizes that any ATen op accepts
/// (contiguous and channels_last; a [n, c, w] tensor counts as h = 1). kNChw8c and kNChw16c are
/// contiguous 5-D float tensors [n, ceil(c / B), h, w, B] whose pad lanes are zero after every
/// writer; only torchalgo's ops touch them, and each op carries the logical c.
enum class Layout : std::uint8_t { kNchw, kNhwc, kNChw8c, kNChw16c };

inline constexpr std::array<Layout, 4> kAllLayouts = {Layout::kNchw, Layout::kNhwc, Layout::kNChw8c,
                                                      Layout::kNChw16c};

/// "nchw", "nhwc", "nChw8c", "nChw16c".
[[nodiscard]] std::string_view to_string(Layout layout);

/// The inverse of to_string; nothing for any other text.
[[nodiscard]] std::optional<Layout> parse_layout(std::string_view text);

/// Channels per block: 8, 16, or 1 for the strided layouts.
[[nodiscard]] constexpr int block_size(Layout layout) {
  return layout == Layout::kNChw16c ? 16 : layout == Layout::kNChw8c ? 8 : 1;
}

[[nodiscard]] constexpr bool is_blocked(Layout layout) { return block_size(layout) > 1; }

/// Elements in memory of a tensor with `spatial` = d * h * w positions, pad lanes included.
[[nodiscard]] constexpr std::int64_t element_count(Layout layout, std::int64_t n, std::int64_t c,
                                                   std::int64_t spatial) {
  const std::int64_t block = block_size(layout);
  return n * ((c + block - 1) / block) * block * spatial;
}

}  // namespace torchalgo

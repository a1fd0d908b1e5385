// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace torchalgo {

/// The order in which a tensor of logical sizes [n, c, (d,) h, w] lies in memory, and the type of
/// its elements if that is not the problem's. The names are oneDNN's.
///
/// kNchw and kNhwc are torch tensors of the logical sizes, contiguous or channels_last. Any ATen op
/// accepts them. A [n, c, w] tensor counts as h = 1. kNChw16c is a contiguous 5-D float tensor
/// [n, ceil(c / 16), h, w, 16]. Every writer sets its pad lanes to zero. Only torchalgo's ops read
/// or write it, and each op knows the logical c. kNhwcBf16 is a channels_last tensor of bf16
/// elements in a model of another type. A model in bf16 has kNhwc instead. The numbers are those of
/// the bits in a set of layouts.
enum class Layout : std::uint8_t { kNchw = 0, kNhwc = 1, kNhwcBf16 = 2, kNChw16c = 3 };

inline constexpr std::array kAllLayouts = {Layout::kNchw, Layout::kNhwc, Layout::kNhwcBf16,
                                           Layout::kNChw16c};

/// Returns "nchw", "nhwc", "nhwc.bf16" or "nChw16c".
[[nodiscard]] std::string_view to_string(Layout layout);

/// Returns the layout of this name, or nullopt for any other text.
[[nodiscard]] std::optional<Layout> parse_layout(std::string_view text);

/// Returns the reason why parse_layout refuses `text`, and the names that it accepts.
[[nodiscard]] std::string refuse_layout(std::string_view text);

/// Returns the layout of the same order whose elements have the problem's type.
[[nodiscard]] constexpr Layout untyped(Layout layout) {
  return layout == Layout::kNhwcBf16 ? Layout::kNhwc : layout;
}

/// Returns true if the layout says the type of its elements.
[[nodiscard]] constexpr bool is_typed(Layout layout) { return untyped(layout) != layout; }

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

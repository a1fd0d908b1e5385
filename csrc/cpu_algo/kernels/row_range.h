// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>

namespace torchalgo::kernels {

/// Rows [begin, end) of an image.
struct Rows {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] constexpr std::int64_t count() const { return end - begin; }
};

/// Returns the rows of the source that rows `result` of a convolution read. Rows in the padding do
/// not count.
template <class Conv>
[[gnu::always_inline]] constexpr Rows rows_read(const Conv& conv, Rows result) {
  const std::int64_t first = result.begin * conv.stride_h - conv.pad_h;
  const std::int64_t last =
      (result.end - 1) * conv.stride_h - conv.pad_h + (conv.r - 1) * conv.dilation_h;
  const std::int64_t begin = std::clamp<std::int64_t>(first, 0, conv.h);
  return {begin, std::clamp<std::int64_t>(last + 1, begin, conv.h)};
}

/// Returns the most source rows that `rows` rows of a result read.
template <class Conv>
[[gnu::always_inline]] constexpr std::int64_t most_rows_read(const Conv& conv, std::int64_t rows) {
  return std::min(conv.h, (rows - 1) * conv.stride_h + (conv.r - 1) * conv.dilation_h + 1);
}

}  // namespace torchalgo::kernels

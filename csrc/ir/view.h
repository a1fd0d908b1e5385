// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo {

/// Primitives of the provider "view" copy nothing: their result is memory that already exists.
/// Their cost is 0 by construction, so they are not measured and cost tables do not hold them.
inline constexpr std::string_view kViewRelabel = "view.relabel";
inline constexpr std::string_view kViewConcat = "view.concat";
inline constexpr std::string_view kViewSlice = "view.slice";

[[nodiscard]] constexpr bool is_view(std::string_view primitive) {
  return primitive.starts_with("view.");
}

/// Returns true if a tensor of logical sizes n, c and `spatial` = d * h * w has its elements in the
/// same order and of the same type in both layouts, and no pad lanes. A change from one to the
/// other is then another name for the same memory. This is the case for:
/// - nchw and nhwc, if c or spatial is 1;
/// - a blocked layout and nchw, if spatial is 1;
/// - a blocked layout and nhwc, if c is one block.
[[nodiscard]] bool lies_alike(std::int64_t n, std::int64_t c, std::int64_t spatial, Layout a,
                              Layout b);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo {

/// Primitives of the provider "view" move nothing: their result is memory that is there already.
/// They cost nothing by construction, so nobody measures them and no cost table holds them.
inline constexpr std::string_view kViewRelabel = "view.relabel";
inline constexpr std::string_view kViewConcat = "view.concat";
inline constexpr std::string_view kViewSlice = "view.slice";

[[nodiscard]] constexpr bool is_view(std::string_view primitive) {
  return primitive.starts_with("view.");
}

/// Whether a tensor of logical sizes n, c and `spatial` = d * h * w has its elements in the same
/// order in both layouts and no pad lanes, so that a change from one to the other is another name
/// for the same memory: nchw and nhwc where c or spatial is 1, a blocked layout and nchw where
/// spatial is 1, a blocked layout and nhwc where c is one block.
[[nodiscard]] bool lies_alike(std::int64_t n, std::int64_t c, std::int64_t spatial, Layout a,
                              Layout b);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo::layout {

/// The two layouts of a transform, or why there is none.
struct LayoutPair {
  Layout from = Layout::kNchw, to = Layout::kNchw;
  std::string refusal;
};
[[nodiscard]] LayoutPair layout_pair(const Problem& problem);

}  // namespace torchalgo::layout

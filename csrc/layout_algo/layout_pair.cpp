// SPDX-License-Identifier: BSD-3-Clause
#include "layout_algo/layout_pair.h"

#include <fmt/format.h>

namespace torchalgo::layout {

LayoutPair layout_pair(const Problem& problem) {
  const auto* transform = std::get_if<TransformProblem>(&problem);
  if (transform == nullptr) return {.refusal = "needs a change of layout"};
  const auto from = parse_layout(transform->from), to = parse_layout(transform->to);
  if (!from || !to) {
    return {.refusal = fmt::format("needs layouts it knows, got {} and {}", transform->from,
                                   transform->to)};
  }
  if (*from == *to) return {.refusal = "needs two layouts that differ"};
  if (transform->is_3d && (is_blocked(*from) || is_blocked(*to))) {
    return {.refusal = "needs a 2-D tensor: blocked layouts have no depth"};
  }
  return {*from, *to, {}};
}

}  // namespace torchalgo::layout

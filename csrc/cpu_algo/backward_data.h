// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>

#include "ir/algorithm.h"

namespace torchalgo::cpu {

/// Returns the forward convolution that computes `conv`, a kBackwardData problem of stride 1. It
/// reads diff_dst. Its weights are those of `conv` turned by 180 degrees, with c and k exchanged.
/// Returns nullopt if a stride is not 1 or a padding exceeds dilation * (filter - 1).
[[nodiscard]] std::optional<ConvProblem> as_forward(const ConvProblem& conv);

/// Taps of kcrs filters: every `step_r`-th row from `first_r` on, and likewise the columns.
struct FilterTaps {
  std::int64_t k, c, groups, r, s;  // of the weights
  std::int64_t first_r = 0, step_r = 1, rows = 0;
  std::int64_t first_s = 0, step_s = 1, columns = 0;

  [[nodiscard]] std::int64_t floats() const { return k * (c / groups) * rows * columns; }
};
[[nodiscard]] inline FilterTaps all_taps(const ConvProblem& conv) {
  return {.k = conv.k,
          .c = conv.c,
          .groups = conv.groups,
          .r = conv.r,
          .s = conv.s,
          .rows = conv.r,
          .columns = conv.s};
}

/// Writes these taps with k and c exchanged in each group, and rotated by 180 degrees.
void turn_filters(const FilterTaps& taps, const float* weights, float* turned);

/// Extends `forward` to gradients with respect to src, and so to transposed convolutions, if
/// as_forward() has a forward convolution for them. With a stride, strided_parts() must have them,
/// and the results of several forward convolutions are put together. The names stay the same,
/// because the direction is part of the problem.
[[nodiscard]] Algorithm with_backward_data(Algorithm forward);

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "ir/layout.h"

namespace torchalgo::cpu {

/// The shape of a [n, c, h, w] tensor as [groups, h * w, lanes]: (n * c, 1) for nchw, (n, c) for
/// nhwc, (n * blocks, block size) for the blocked layouts.
struct LaneShape {
  std::int64_t groups = 1, lanes = 1;
};
[[nodiscard]] LaneShape lane_shape(Layout layout, std::int64_t n, std::int64_t c);

/// Returns the least number of tasks that a thread should have, so that a small tensor stays on one
/// thread.
[[nodiscard]] std::int64_t grain_of(std::int64_t floats_per_task);

}  // namespace torchalgo::cpu

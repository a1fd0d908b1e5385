// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/lanes.h"

#include <algorithm>

namespace torchalgo::cpu {

LaneShape lane_shape(Layout layout, std::int64_t n, std::int64_t c) {
  if (layout == Layout::kNchw) return {n * c, 1};
  if (layout == Layout::kNhwc) return {n, c};
  const std::int64_t block = block_size(layout);
  return {n * ((c + block - 1) / block), block};
}

std::int64_t grain_of(std::int64_t floats_per_task) {
  constexpr std::int64_t kFloats = 32768;  // as at::internal::GRAIN_SIZE
  return std::max<std::int64_t>(1, kFloats / std::max<std::int64_t>(1, floats_per_task));
}

}  // namespace torchalgo::cpu

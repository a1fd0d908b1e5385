// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/knob_search.h"

#include <algorithm>

namespace torchalgo::cudnn {

std::vector<Knobs> neighbours(const Knobs& center, std::span<const KnobRange> ranges,
                              std::size_t limit) {
  std::vector<Knobs> result;
  for (std::size_t i = 0; i < center.size(); ++i) {
    const auto range = std::ranges::find(ranges, center[i].type, &KnobRange::type);
    const std::int64_t value = center[i].value;
    if (range == ranges.end() || value < range->least || value > range->greatest) continue;
    const std::int64_t step = std::max<std::int64_t>(range->step, 1);
    for (const std::int64_t other : {value - step, value + step}) {
      if (other < range->least || other > range->greatest) continue;
      if (result.size() == limit) return result;
      result.push_back(center);
      result.back()[i].value = other;
    }
  }
  return result;
}

}  // namespace torchalgo::cudnn

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cudnn_algo/engine_config.h"
#include "cudnn_algo/knobs.h"

namespace torchalgo::cudnn {

/// Returns at most `limit` sets of knobs that differ from `center` in one value by one step,
/// nearest first and within `ranges`. A value outside its range is not changed; some proposals of
/// cuDNN have such values.
[[nodiscard]] std::vector<Knobs> neighbours(const Knobs& center, std::span<const KnobRange> ranges,
                                            std::size_t limit);

}  // namespace torchalgo::cudnn

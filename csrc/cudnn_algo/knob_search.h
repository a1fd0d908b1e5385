// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cudnn_algo/engine_config.h"
#include "cudnn_algo/knobs.h"

namespace torchalgo::cudnn {

/// Knobs that differ from `center` in one value by one step, nearest first and within `ranges`; at
/// most `limit`. A value outside its range (cuDNN's own proposals have some) is left as it is.
[[nodiscard]] std::vector<Knobs> neighbours(const Knobs& center, std::span<const KnobRange> ranges,
                                            std::size_t limit);

}  // namespace torchalgo::cudnn

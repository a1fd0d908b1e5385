// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cudnn_algo/plan.h"
#include "provider/algorithm.h"

namespace torchalgo::cudnn {

/// What an engine's notes mean for a person; hidden_bytes is unknown. Words of `numerics`:
/// tensor_core, down_convert_inputs, reduced_precision_reduction, fft, winograd, winograd_4x4,
/// winograd_6x6, winograd_13x13, strict_nan_prop.
[[nodiscard]] Traits traits_of(const EngineNotes& notes);

}  // namespace torchalgo::cudnn

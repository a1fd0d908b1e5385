// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cudnn_algo/plan.h"
#include "ir/algorithm.h"

namespace torchalgo::cudnn {

/// Returns the traits that an engine's notes describe. hidden_bytes is unknown. The words of
/// `numerics` are tensor_core, down_convert_inputs, reduced_precision_reduction, fft, winograd,
/// winograd_4x4, winograd_6x6, winograd_13x13, strict_nan_prop.
[[nodiscard]] Traits traits_of(const EngineNotes& notes);

}  // namespace torchalgo::cudnn

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cudnn_algo/api.h"
#include "cudnn_algo/plan.h"
#include "ir/problem.h"

namespace torchalgo::cudnn {

/// Returns a status in plain words, with its name and number: "not for this GPU (sm_90):
/// ARCH_MISMATCH (3007)".
[[nodiscard]] std::string refusal_text(const Api& api, Status status, std::string_view isa);

/// Returns the reason why cuDNN is not asked about tensors of these sizes, or nullopt. Its engines
/// compute positions in 32 bits, and PyTorch splits larger batches.
[[nodiscard]] std::optional<std::string> size_refusal(const ConvProblem& conv);

/// Returns the reason why an engine with these notes does not compute in the problem's type.
/// Returns nullopt if it does. An f32 problem must not use TF32. No problem allows inputs to be
/// rounded to 16 bits, or partial sums of 16 bits.
[[nodiscard]] std::optional<std::string> numeric_refusal(const EngineNotes& notes, DType dtype);

}  // namespace torchalgo::cudnn

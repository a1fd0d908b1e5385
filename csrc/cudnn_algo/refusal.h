// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cudnn_algo/api.h"
#include "cudnn_algo/plan.h"
#include "ir/problem.h"

namespace torchalgo::cudnn {

/// A status in plain words, with its name and number: "not for this GPU (sm_90): ARCH_MISMATCH
/// (3007)".
[[nodiscard]] std::string refusal_text(const Api& api, Status status, std::string_view isa);

/// Why an engine with these notes does not compute in the type that the problem states; nothing: it
/// does. f32 is strict: no TF32; rounding inputs to 16 bits is never wanted; f16, bf16 accumulate
/// in f32 as far as cuDNN says.
[[nodiscard]] std::optional<std::string> numeric_refusal(const EngineNotes& notes, DType dtype);

}  // namespace torchalgo::cudnn

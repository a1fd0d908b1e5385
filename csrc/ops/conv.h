// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>

#include "ops/conv_call.h"
#include "ops/settings.h"
#include "provider/algorithm.h"

namespace torchalgo {

/// Runs the primitive that is asked for: by `choice`, the text of an argument, else by
/// conv_settings(): context, then flags, then plan. What is decided for a problem is remembered per
/// thread until a setting changes.
/// @return  the result in call.result_format, dense; nothing: PyTorch's own path is asked for, or
/// the call is none of ours, see conv_problem().
/// @throws Error  if `choice` is no choice; on a conflict with torch's flags, unless the policy is
/// another; when strict, if the primitive cannot run.
[[nodiscard]] std::optional<at::Tensor> run_convolution(const ConvCall& call,
                                                        std::string_view choice,
                                                        const Algorithms& algorithms);

/// What is asked of `problem` on a device: the name of a primitive or an algorithm; empty: PyTorch
/// chooses.
[[nodiscard]] std::string requested_name(const Choice& argument, const ConvProblem& problem,
                                         DeviceKind kind, const ConvSettings& settings);

/// What a plan asks of `problem`, else of it without its epilogue; null: nothing.
[[nodiscard]] const Choice* find_planned(const PlannedChoices& planned, const ConvProblem& problem);

}  // namespace torchalgo

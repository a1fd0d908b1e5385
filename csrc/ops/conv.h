// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>

#include "ir/algorithm.h"
#include "ops/conv_call.h"
#include "ops/settings.h"

namespace torchalgo {

/// Runs the chosen primitive. The first of these sources that has a choice decides: `choice`, which
/// is the text of an argument; the context, the flags and the plan of conv_settings(). Each thread
/// keeps its decisions until a setting changes.
/// @return  the dense result in call.result_format; nullopt if PyTorch's own path is chosen, or if
/// conv_problem() has no problem for the call.
/// @throws Error  if `choice` cannot be parsed; if it conflicts with torch's flags and the policy
/// is kError; if the primitive cannot run and is_strict() is true.
[[nodiscard]] std::optional<at::Tensor> run_convolution(const ConvCall& call,
                                                        std::string_view choice,
                                                        const Algorithms& algorithms);

/// Returns the name of the primitive or algorithm chosen for `problem` on a device. Returns an
/// empty text if PyTorch chooses.
[[nodiscard]] std::string requested_name(const Choice& argument, const ConvProblem& problem,
                                         DeviceKind kind, const ConvSettings& settings);

/// Returns the planned choice for `problem`, or that for `problem` without its epilogue. Returns
/// null if there is neither.
[[nodiscard]] const Choice* find_planned(const PlannedChoices& planned, const ConvProblem& problem);

}  // namespace torchalgo

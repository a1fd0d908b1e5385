// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <string>

#include "ops/conv_args.h"

namespace torchalgo {

/// aten::convolution by the primitive that `choice` or the settings ask for; where they ask for
/// nothing, exactly what PyTorch computes. `choice` is the argument of the module's computation: of
/// a transposed convolution the output is computed by a backward_data primitive.
[[nodiscard]] at::Tensor run_forward(const ConvArgs& args, const OptionalTensor& bias,
                                     std::string_view choice);

/// The same where a primitive is asked for; nothing where PyTorch chooses.
[[nodiscard]] std::optional<at::Tensor> run_asked_forward(const ConvArgs& args,
                                                          const OptionalTensor& bias,
                                                          std::string_view choice);

/// aten::convolution_backward likewise; gradients that `mask` leaves out are undefined. The
/// gradient of a transposed convolution's input is computed by a forward primitive.
[[nodiscard]] Gradients run_backward(const at::Tensor& grad_output, const ConvArgs& args,
                                     at::OptionalIntArrayRef bias_sizes, std::array<bool, 3> mask,
                                     std::string_view backward_data,
                                     std::string_view backward_filter);

/// Texts of choices for the backward pass.
struct BackwardChoices {
  std::string data, filter;
};

/// Returns choices that make the backward pass run what the arguments and the settings ask for now,
/// whatever the settings are then.
[[nodiscard]] BackwardChoices fix_backward_choices(const ConvArgs& args,
                                                   std::string_view backward_data,
                                                   std::string_view backward_filter);

}  // namespace torchalgo

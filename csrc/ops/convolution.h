// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <string>

#include "ops/conv_args.h"

namespace torchalgo {

/// Computes aten::convolution with the primitive that `choice` or the settings name. If they name
/// none, the result is exactly PyTorch's. `choice` is the argument for the output, which a
/// backward_data primitive computes if the convolution is transposed.
[[nodiscard]] at::Tensor run_forward(const ConvArgs& args, const OptionalTensor& bias,
                                     std::string_view choice);

/// Does the same as run_forward() if a primitive is chosen. Returns nullopt if PyTorch chooses.
[[nodiscard]] std::optional<at::Tensor> run_chosen_forward(const ConvArgs& args,
                                                           const OptionalTensor& bias,
                                                           std::string_view choice);

/// Computes aten::convolution_backward in the same way. Gradients that `mask` leaves out are
/// undefined. A forward primitive computes the gradient of a transposed convolution's input.
[[nodiscard]] Gradients run_backward(const at::Tensor& grad_output, const ConvArgs& args,
                                     at::OptionalIntArrayRef bias_sizes, std::array<bool, 3> mask,
                                     std::string_view backward_data,
                                     std::string_view backward_filter);

/// Texts of choices for the backward pass.
struct BackwardChoices {
  std::string data, filter;
};

/// Returns the choices of the arguments and the present settings. The backward pass runs with them,
/// whatever the settings are at that time.
[[nodiscard]] BackwardChoices fix_backward_choices(const ConvArgs& args,
                                                   std::string_view backward_data,
                                                   std::string_view backward_filter);

}  // namespace torchalgo

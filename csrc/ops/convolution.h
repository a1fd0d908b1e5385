// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace torchalgo {

/// A convolution as torch sees it: the arguments of aten::convolution, valid as long as what they
/// refer to.
struct ConvArgs {
  const at::Tensor& input;
  const at::Tensor& weight;
  at::IntArrayRef stride, padding, dilation;
  bool transposed = false;
  at::IntArrayRef output_padding;
  std::int64_t groups = 1;
};

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // of input, weight, bias

/// aten::convolution by the primitive that `choice` or the settings ask for; where they ask for
/// nothing, exactly what PyTorch computes. `choice` is the argument of the module's computation: of
/// a transposed convolution the output is computed by a backward_data primitive.
[[nodiscard]] at::Tensor run_forward(const ConvArgs& args, const std::optional<at::Tensor>& bias,
                                     std::string_view choice);

/// The same where a primitive is asked for; nothing where PyTorch chooses.
[[nodiscard]] std::optional<at::Tensor> run_asked_forward(const ConvArgs& args,
                                                          const std::optional<at::Tensor>& bias,
                                                          std::string_view choice);

/// aten::convolution_backward likewise; gradients that `mask` leaves out are undefined. The
/// gradient of a transposed convolution's input is computed by a forward primitive.
[[nodiscard]] Gradients run_backward(const at::Tensor& grad_output, const ConvArgs& args,
                                     at::OptionalIntArrayRef bias_sizes, std::array<bool, 3> mask,
                                     std::string_view backward_data,
                                     std::string_view backward_filter);

/// The texts that ask in the backward pass for what is asked now, by argument or setting.
struct SettledChoices {
  std::string backward_data, backward_filter;
};
[[nodiscard]] SettledChoices settle_backward(const ConvArgs& args, std::string_view backward_data,
                                             std::string_view backward_filter);

}  // namespace torchalgo

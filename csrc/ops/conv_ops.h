// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>

namespace torchalgo {

/// torchalgo::convolution through the dispatcher.
[[nodiscard]] at::Tensor call_convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
    bool transposed, c10::SymIntArrayRef output_padding, const c10::SymInt& groups,
    std::string_view forward, std::string_view backward_data, std::string_view backward_filter);

/// torchalgo::convolution_backward through the dispatcher; gradients that `mask` leaves out are
/// empty tensors.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor, at::Tensor> call_convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalSymIntArrayRef bias_sizes, c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    const c10::SymInt& groups, std::array<bool, 3> mask, std::string_view backward_data,
    std::string_view backward_filter);

}  // namespace torchalgo

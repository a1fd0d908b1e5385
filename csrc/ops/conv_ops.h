// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>

#include "ops/conv_args.h"

namespace torchalgo {

/// Calls torchalgo::convolution through the dispatcher.
[[nodiscard]] at::Tensor call_convolution(const SymConvArgs& args, const OptionalTensor& bias,
                                          const ChoiceTexts& choices);

/// Calls torchalgo::convolution_backward through the dispatcher; the forward choice is not used.
/// Gradients that `mask` leaves out are empty tensors.
[[nodiscard]] Gradients call_convolution_backward(const at::Tensor& grad_output,
                                                  const SymConvArgs& args,
                                                  at::OptionalSymIntArrayRef bias_sizes,
                                                  std::array<bool, 3> mask,
                                                  const ChoiceTexts& choices);

/// Kernels of torchalgo::convolution and torchalgo::convolution_backward. They have the
/// dispatcher's parameters and call functions that take `Args`, which is ConvArgs or SymConvArgs.
template <typename Args>
struct ConvKernels {
  using Int = typename Args::Int;
  using Ints = typename Args::Ints;
  using Forward = at::Tensor(const Args&, const OptionalTensor& bias, const ChoiceTexts&);
  using Backward = Gradients(const at::Tensor& grad_output, const Args&,
                             at::OptionalArrayRef<Int> bias_sizes, std::array<bool, 3> mask,
                             const ChoiceTexts&);

  template <Forward* kFunction>
  static at::Tensor forward(const at::Tensor& input, const at::Tensor& weight,
                            const OptionalTensor& bias, Ints stride, Ints padding, Ints dilation,
                            bool transposed, Ints output_padding, Int groups,
                            std::string_view forward, std::string_view backward_data,
                            std::string_view backward_filter) {
    return kFunction(
        {input, weight, stride, padding, dilation, transposed, output_padding, std::move(groups)},
        bias, {forward, backward_data, backward_filter});
  }

  template <Backward* kFunction>
  static Gradients backward(const at::Tensor& grad_output, const at::Tensor& input,
                            const at::Tensor& weight, at::OptionalArrayRef<Int> bias_sizes,
                            Ints stride, Ints padding, Ints dilation, bool transposed,
                            Ints output_padding, Int groups, std::array<bool, 3> mask,
                            std::string_view backward_data, std::string_view backward_filter) {
    return kFunction(
        grad_output,
        {input, weight, stride, padding, dilation, transposed, output_padding, std::move(groups)},
        bias_sizes, mask, {{}, backward_data, backward_filter});
  }

  using ForwardSignature = decltype(forward<nullptr>);
  using BackwardSignature = decltype(backward<nullptr>);
};

}  // namespace torchalgo

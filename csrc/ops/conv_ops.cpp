// SPDX-License-Identifier: BSD-3-Clause
#include "ops/conv_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace torchalgo {
namespace {

using SymInts = c10::SymIntArrayRef;
using Forward = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                           SymInts, SymInts, SymInts, bool, SymInts, c10::SymInt, std::string_view,
                           std::string_view, std::string_view);
using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, at::OptionalSymIntArrayRef, SymInts,
    SymInts, SymInts, bool, SymInts, c10::SymInt, std::array<bool, 3>, std::string_view,
    std::string_view);

template <typename Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace

at::Tensor call_convolution(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, SymInts stride, SymInts padding,
                            SymInts dilation, bool transposed, SymInts output_padding,
                            const c10::SymInt& groups, std::string_view forward,
                            std::string_view backward_data, std::string_view backward_filter) {
  static const auto op = find_op<Forward>("torchalgo::convolution");
  return op.call(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups,
                 forward, backward_data, backward_filter);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> call_convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalSymIntArrayRef bias_sizes, SymInts stride, SymInts padding, SymInts dilation,
    bool transposed, SymInts output_padding, const c10::SymInt& groups, std::array<bool, 3> mask,
    std::string_view backward_data, std::string_view backward_filter) {
  static const auto op = find_op<Backward>("torchalgo::convolution_backward");
  return op.call(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
                 output_padding, groups, mask, backward_data, backward_filter);
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/conv_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace torchalgo {
namespace {

template <typename Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace

at::Tensor call_convolution(const SymConvArgs& args, const OptionalTensor& bias,
                            const ChoiceTexts& choices) {
  static const auto op =
      find_op<ConvKernels<SymConvArgs>::ForwardSignature>("torchalgo::convolution");
  return op.call(args.input, args.weight, bias, args.stride, args.padding, args.dilation,
                 args.transposed, args.output_padding, args.groups, choices.forward,
                 choices.backward_data, choices.backward_filter);
}

Gradients call_convolution_backward(const at::Tensor& grad_output, const SymConvArgs& args,
                                    at::OptionalSymIntArrayRef bias_sizes, std::array<bool, 3> mask,
                                    const ChoiceTexts& choices) {
  static const auto op =
      find_op<ConvKernels<SymConvArgs>::BackwardSignature>("torchalgo::convolution_backward");
  return op.call(grad_output, args.input, args.weight, bias_sizes, args.stride, args.padding,
                 args.dilation, args.transposed, args.output_padding, args.groups, mask,
                 choices.backward_data, choices.backward_filter);
}

}  // namespace torchalgo

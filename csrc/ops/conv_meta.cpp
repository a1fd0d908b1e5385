// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "ops/conv_call.h"
#include "ops/conv_ops.h"

// Sizes and strides of the convolutions' results without data, for symbolic sizes too.
namespace torchalgo {
namespace {

using SymInts = c10::SymIntArrayRef;

// Checks what kernels for data check by describing the call as a problem.
void check_numbers(const SymConvArgs& args) {
  const auto rank = static_cast<std::size_t>(args.input.dim());
  TORCH_CHECK(rank >= 3 && rank <= 5 && args.input.dim() == args.weight.dim(),
              "torchalgo::convolution: expected input and weight of one rank from 3 to 5, got ",
              args.input.sym_sizes(), " and ", args.weight.sym_sizes());
  const auto check_count = [&](SymInts values) {
    TORCH_CHECK(values.size() == 1 || values.size() == rank - 2,
                "torchalgo::convolution: expected ", rank - 2,
                " numbers for stride, padding, dilation and output_padding, got ", values.size());
  };
  for (const SymInts values : {args.stride, args.padding, args.dilation}) check_count(values);
  if (args.transposed) check_count(args.output_padding);
  for (const SymInts values : {args.stride, args.dilation}) {
    for (const c10::SymInt& value : values) {
      TORCH_CHECK(value >= 1,
                  "torchalgo::convolution: expected stride and dilation of at least 1, got ",
                  args.stride, " and ", args.dilation);
    }
  }
  TORCH_CHECK(args.groups >= 1, "torchalgo::convolution: expected at least one group, got ",
              args.groups);
}

at::Tensor convolution(const SymConvArgs& args, const OptionalTensor& bias, const ChoiceTexts&) {
  const at::Tensor &input = args.input, &weight = args.weight;
  check_numbers(args);
  check_bias_type(input, bias, args.transposed);
  TORCH_CHECK(input.sym_size(1) ==
                  (args.transposed ? weight.sym_size(0) : weight.sym_size(1) * args.groups),
              "torchalgo::convolution: input ", input.sym_sizes(), " does not fit weight ",
              weight.sym_sizes(), " with ", args.groups, " groups");
  const auto sizes = conv_output_sizes(args);
  for (std::size_t i = 2; i < sizes.size(); ++i) {
    // A division rounds towards 0, so the quotient of a negative number may look right.
    const c10::SymInt span = number_of(args.dilation, i - 2) * (weight.sym_size(i) - 1) + 1;
    const c10::SymInt padded = input.sym_size(i) + number_of(args.padding, i - 2) * 2;
    const bool fits = args.transposed || padded >= span;
    TORCH_CHECK(fits && sizes[i] >= 1, "torchalgo::convolution: the filter ", weight.sym_sizes(),
                " is larger than the padded input ", input.sym_sizes());
  }
  return at::empty_symint(sizes, input.options().memory_format(conv_memory_format(input, weight)));
}

Gradients convolution_backward(const at::Tensor& grad_output, const SymConvArgs& args,
                               at::OptionalSymIntArrayRef, std::array<bool, 3> mask,
                               const ChoiceTexts&) {
  const at::Tensor &input = args.input, &weight = args.weight;
  const at::MemoryFormat format = conv_memory_format(input, weight);
  const auto empty = [&](bool wanted, SymInts sizes, at::MemoryFormat in, const at::Tensor& like) {
    if (!wanted) return at::empty({0}, like.options());
    return at::empty_symint(sizes, like.options().memory_format(in));
  };
  const std::vector<c10::SymInt> channels = {args.transposed ? weight.sym_size(1) * args.groups
                                                             : weight.sym_size(0)};
  return {empty(mask[0], input.sym_sizes(), format, input),
          empty(mask[1], weight.sym_sizes(), format, weight),
          empty(mask[2], channels, at::MemoryFormat::Contiguous, grad_output)};
}

TORCH_LIBRARY_IMPL(torchalgo, Meta, m) {
  m.impl("convolution", ConvKernels<SymConvArgs>::forward<&convolution>);
  m.impl("convolution_backward", ConvKernels<SymConvArgs>::backward<&convolution_backward>);
}

}  // namespace
}  // namespace torchalgo

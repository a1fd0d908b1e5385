// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <string_view>
#include <tuple>
#include <vector>

#include "ops/conv_call.h"

// Sizes and strides of the convolutions' results without data, for symbolic sizes too.
namespace torchalgo {
namespace {

using SymInts = c10::SymIntArrayRef;
using OptionalTensor = std::optional<at::Tensor>;

void check_ranks(const at::Tensor& input, const at::Tensor& weight, SymInts stride, SymInts padding,
                 SymInts dilation) {
  const auto rank = static_cast<std::size_t>(input.dim());
  TORCH_CHECK(rank >= 3 && rank <= 5 && input.dim() == weight.dim(),
              "torchalgo::convolution: expected input and weight of one rank from 3 to 5, got ",
              input.sym_sizes(), " and ", weight.sym_sizes());
  for (const SymInts values : {stride, padding, dilation}) {
    TORCH_CHECK(values.size() == 1 || values.size() == rank - 2,
                "torchalgo::convolution: expected ", rank - 2,
                " numbers for stride, padding and dilation, got ", values.size());
  }
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const OptionalTensor& bias, SymInts stride, SymInts padding,
                       SymInts dilation, bool transposed, SymInts output_padding,
                       c10::SymInt groups, std::string_view, std::string_view, std::string_view) {
  check_ranks(input, weight, stride, padding, dilation);
  check_bias_type(input, bias, transposed);
  TORCH_CHECK(input.sym_size(1) == (transposed ? weight.sym_size(0) : weight.sym_size(1) * groups),
              "torchalgo::convolution: input ", input.sym_sizes(), " does not fit weight ",
              weight.sym_sizes(), " with ", groups, " groups");
  const auto value = [](SymInts values, std::size_t i) {
    return values.size() == 1 ? values[0] : values[i];
  };
  std::vector<c10::SymInt> sizes = {input.sym_size(0),
                                    transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  for (std::size_t i = 0; i + 2 < static_cast<std::size_t>(input.dim()); ++i) {
    const auto dim = static_cast<std::int64_t>(i + 2);
    const c10::SymInt span = value(dilation, i) * (weight.sym_size(dim) - 1);
    const c10::SymInt pad = value(padding, i) * 2;
    const c10::SymInt size = transposed
                                 ? (input.sym_size(dim) - 1) * value(stride, i) - pad + span + 1 +
                                       value(output_padding, i)
                                 : (input.sym_size(dim) + pad - span - 1) / value(stride, i) + 1;
    TORCH_CHECK(size >= 1, "torchalgo::convolution: the filter ", weight.sym_sizes(),
                " is larger than the padded input ", input.sym_sizes());
    sizes.push_back(size);
  }
  return at::empty_symint(sizes, input.options().memory_format(conv_memory_format(input, weight)));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalSymIntArrayRef, SymInts, SymInts, SymInts, bool transposed, SymInts,
    c10::SymInt groups, std::array<bool, 3> mask, std::string_view, std::string_view) {
  const at::MemoryFormat format = conv_memory_format(input, weight);
  const auto empty = [&](bool wanted, SymInts sizes, at::MemoryFormat in, const at::Tensor& like) {
    if (!wanted) return at::empty({0}, like.options());
    return at::empty_symint(sizes, like.options().memory_format(in));
  };
  const std::vector<c10::SymInt> channels = {transposed ? weight.sym_size(1) * groups
                                                        : weight.sym_size(0)};
  return {empty(mask[0], input.sym_sizes(), format, input),
          empty(mask[1], weight.sym_sizes(), format, weight),
          empty(mask[2], channels, at::MemoryFormat::Contiguous, grad_output)};
}

TORCH_LIBRARY_IMPL(torchalgo, Meta, m) {
  m.impl("convolution", convolution);
  m.impl("convolution_backward", convolution_backward);
}

}  // namespace
}  // namespace torchalgo

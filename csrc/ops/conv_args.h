// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

namespace torchalgo {

/// The arguments of aten::convolution without the bias; `IntType` is int64 or c10::SymInt. It
/// refers to the caller's tensors and numbers.
template <typename IntType>
struct ConvArgsOf {
  using Int = IntType;
  using Ints = c10::ArrayRef<Int>;

  const at::Tensor& input;
  const at::Tensor& weight;
  Ints stride, padding, dilation;  // one number per image dimension, or one for all
  bool transposed = false;
  Ints output_padding;
  Int groups = 1;

  /// Returns the same convolution of other tensors.
  [[nodiscard]] ConvArgsOf of(const at::Tensor& other_input, const at::Tensor& other_weight) const {
    return {other_input, other_weight, stride,         padding,
            dilation,    transposed,   output_padding, groups};
  }
};

using ConvArgs = ConvArgsOf<std::int64_t>;
using SymConvArgs = ConvArgsOf<c10::SymInt>;  // sizes may be symbols

/// The algorithms that the arguments of a call choose, one text for each of the three directions:
/// the output, the gradient of the input and the gradient of the weight.
struct ChoiceTexts {
  std::string_view forward, backward_data, backward_filter;
};

using OptionalTensor = std::optional<at::Tensor>;
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // of input, weight, bias

/// Returns the number of image dimension `i` in a list that may hold one number for all dimensions.
template <typename Int>
[[nodiscard]] const Int& number_of(c10::ArrayRef<Int> values, std::size_t i) {
  return values.size() == 1 ? values[0] : values[i];
}

/// Returns the sizes of the convolution's output. The ranks must fit.
template <typename Int>
[[nodiscard]] c10::SmallVector<Int, at::kDimVectorStaticSize> conv_output_sizes(
    const ConvArgsOf<Int>& args) {
  const auto input = at::symint::sizes<Int>(args.input);
  const auto weight = at::symint::sizes<Int>(args.weight);
  c10::SmallVector<Int, at::kDimVectorStaticSize> sizes = {
      input[0], args.transposed ? weight[1] * args.groups : weight[0]};
  for (std::size_t i = 0; i + 2 < input.size(); ++i) {
    const Int span = number_of(args.dilation, i) * (weight[i + 2] - 1);
    const Int pad = number_of(args.padding, i) * 2;
    const Int& stride = number_of(args.stride, i);
    sizes.push_back(args.transposed ? (input[i + 2] - 1) * stride - pad + span + 1 +
                                          number_of(args.output_padding, i)
                                    : (input[i + 2] + pad - span - 1) / stride + 1);
  }
  return sizes;
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Functions that the algorithms for convolutions share.

#include <cstdint>
#include <string>
#include <vector>

#include "cpu_algo/kernels/activation.h"
#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// Returns the reason why none of our algorithms runs `conv`, or an empty string. They need f32,
/// forward, 2-D, an epilogue of the form act(result + bias + residual), and tensors below 2^31
/// elements.
[[nodiscard]] std::string refuse_conv(const ConvProblem& conv);

/// Returns the reason why none of our algorithms computes the gradient `conv` with respect to the
/// weights, or an empty string. They need what refuse_conv() asks of the forward convolution.
[[nodiscard]] std::string refuse_backward_filter(const ConvProblem& conv);

/// Returns the reason why an algorithm without dilation does not run `conv`, or an empty string.
[[nodiscard]] std::string refuse_dilation(const ConvProblem& conv);

/// Returns the reason why an algorithm for blocks of 16 channels does not run the groups of `conv`,
/// or an empty string. Several groups need whole blocks each.
[[nodiscard]] std::string refuse_broken_groups(const ConvProblem& conv);

/// Returns the activation of an epilogue that refuse_conv accepted.
[[nodiscard]] kernels::Activation activation_of(const Epilogue& epilogue);

/// Sets the sizes of images and filters, the strides, the padding and, if there are any, the
/// dilations in a kernel's arguments.
template <class Args>
void set_geometry(Args& args, const ConvProblem& conv) {
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  args.h = conv.h;
  args.w = conv.w;
  args.p = dst[2];
  args.q = dst[3];
  args.r = conv.r;
  args.s = conv.s;
  args.stride_h = conv.stride_h;
  args.stride_w = conv.stride_w;
  args.pad_h = conv.pad_h;
  args.pad_w = conv.pad_w;
  if constexpr (requires { args.dilation_h; }) {
    args.dilation_h = conv.dilation_h;
    args.dilation_w = conv.dilation_w;
  }
}

/// Returns the N of a variant "<name>.tN".
[[nodiscard]] std::int64_t variant_number(const Primitive& primitive);

/// Writes the `channels` floats of `bias` (null: zeros) and zeros up to `count` floats to `padded`.
void pad_bias(const float* bias, std::int64_t channels, float* padded, std::int64_t count);

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Returns how many blocks of 16 hold `count` channels.
[[nodiscard]] constexpr std::int64_t channel_blocks(std::int64_t count) {
  return ceil_div(count, 16);
}

}  // namespace torchalgo::cpu

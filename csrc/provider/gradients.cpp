// SPDX-License-Identifier: BSD-3-Clause
#include "provider/gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/elu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/hardsigmoid_backward.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/where.h>

#include <tuple>

#include "base/error.h"

namespace torchalgo {
namespace {

at::Tensor moments_of(const at::Tensor& x) {
  const auto [variance, mean] = at::var_mean(x, at::IntArrayRef{0, 2, 3}, at::Scalar(0), true);
  return at::cat({mean, variance});
}

at::Tensor inverse_deviation(const at::Tensor& moments, double epsilon) {
  return (moments.narrow(0, 1, 1) + epsilon).rsqrt();
}

}  // namespace

at::Tensor batch_norm_step(const BatchNormProblem& step, std::span<const at::Tensor> src,
                           const LayerWeights& weights) {
  if (step.step == BatchNormStep::kMoments) return moments_of(src[0]);
  const bool is_forward = step.step == BatchNormStep::kNormalize;
  const at::Tensor& x = src[is_forward ? 0 : 1];
  const at::Tensor& moments = src[is_forward ? 1 : 2];
  const at::Tensor inverse = inverse_deviation(moments, step.epsilon);
  const at::Tensor normalized = (x - moments.narrow(0, 0, 1)) * inverse;
  const auto result = [&] {
    return normalized * weights.weights.view({-1, 1, 1}) + weights.bias.view({-1, 1, 1});
  };
  if (is_forward) return result();
  const at::Tensor diff =
      step.activation ? activation_gradient(src[0], result(), *step.activation) : src[0];
  if (step.step == BatchNormStep::kGradientSums) {
    return at::cat({diff.sum({0, 2, 3}, true), (diff * normalized).sum({0, 2, 3}, true)});
  }
  const at::Tensor means = src[3] / static_cast<double>(step.n * step.h * step.w);
  const at::Tensor rest = diff - means.narrow(0, 0, 1) - normalized * means.narrow(0, 1, 1);
  return rest * (inverse * weights.weights.view({1, -1, 1, 1}));
}

at::Tensor activation_gradient(const at::Tensor& diff, const at::Tensor& x, const PostOp& op) {
  const auto& [first, second] = op.numbers;
  // ATen's functions for ReLU6, clamp and hardswish are not used. If x is a NaN, the place in the
  // tensor decides whether their result is a NaN.
  switch (op.kind) {
    case PostOp::kRelu:
      return at::threshold_backward(diff, x, 0);
    case PostOp::kRelu6:
      return diff.masked_fill(x.le(0).logical_or(x.ge(6)), 0);
    case PostOp::kClamp:
      return diff.masked_fill(x.le(first).logical_or(x.ge(second)), 0);
    case PostOp::kHardswish:
      return at::where(x.gt(3), diff, (diff * (x / 3 + 0.5)).masked_fill(x.lt(-3), 0));
    case PostOp::kSilu:
      return at::silu_backward(diff, x);
    case PostOp::kSigmoid:
      return at::sigmoid_backward(diff, x.sigmoid());
    case PostOp::kHardsigmoid:
      return at::hardsigmoid_backward(diff, x);
    case PostOp::kGelu:
      return at::gelu_backward(diff, x);
    case PostOp::kGeluTanh:
      return at::gelu_backward(diff, x, "tanh");
    case PostOp::kMish:
      return at::mish_backward(diff, x);
    case PostOp::kTanh:
      return at::tanh_backward(diff, x.tanh());
    case PostOp::kElu:
      return at::elu_backward(diff, first, 1, 1, /*is_result=*/false, x);
    case PostOp::kLeakyRelu:
      return at::leaky_relu_backward(diff, x, first, /*self_is_result=*/false);
    case PostOp::kBias:
    case PostOp::kAdd:
      break;
  }
  TORCHALGO_ASSERT(false);
}

at::Tensor channel_sums(const ChannelSumsProblem& p, std::span<const at::Tensor> src) {
  const at::Tensor terms = p.has_product ? src[0] * src[1] : src[0];
  const at::DimVector summed = p.per_image ? at::DimVector{2, 3} : at::DimVector{0, 2, 3};
  return terms.sum(summed, /*keepdim=*/true);
}

at::Tensor pool_gradient(const PoolProblem& p, std::span<const at::Tensor> src) {
  const at::Tensor& diff = src[0];
  const at::DimVector window = {p.r, p.s}, stride = {p.stride_h, p.stride_w},
                      pad = {p.pad_h, p.pad_w}, dilation = {p.dilation_h, p.dilation_w};
  if (p.kind == PoolKind::kMax) {
    const at::Tensor indices = std::get<1>(
        at::max_pool2d_with_indices(src[1], window, stride, pad, dilation, p.ceil_mode));
    return at::max_pool2d_with_indices_backward(diff, src[1], window, stride, pad, dilation,
                                                p.ceil_mode, indices);
  }
  // The backward functions read only the sizes and the memory format of this tensor.
  const at::Tensor x =
      at::empty({p.n, p.c, p.h, p.w}, diff.options(), diff.suggest_memory_format());
  if (p.kind == PoolKind::kAdaptiveAverage) return at::_adaptive_avg_pool2d_backward(diff, x);
  return at::avg_pool2d_backward(diff, x, window, stride, pad, p.ceil_mode, p.count_include_pad,
                                 std::nullopt);
}

}  // namespace torchalgo

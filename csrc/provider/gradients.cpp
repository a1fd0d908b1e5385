// SPDX-License-Identifier: BSD-3-Clause
#include "provider/gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/var_mean.h>

#include <tuple>

#include "base/error.h"
#include "provider/epilogue.h"

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

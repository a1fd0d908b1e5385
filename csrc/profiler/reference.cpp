// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/channel_shuffle.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/pixel_shuffle.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "ir/arithmetic.h"
#include "profiler/check.h"
#include "provider/attention.h"
#include "provider/channel_norm.h"
#include "provider/epilogue.h"
#include "provider/gradients.h"
#include "provider/uneven_padding.h"

namespace torchalgo {
namespace {

at::Tensor reference_conv(const ConvProblem& p, const std::vector<at::Tensor>& src,
                          const LayerWeights& w) {
  std::vector<std::int64_t> stride = {p.stride_h, p.stride_w};
  at::DimVector pad = even_padding(p);
  std::vector<std::int64_t> dilation = {p.dilation_h, p.dilation_w}, output_pad = {0, 0};
  if (p.is_3d) {
    stride.insert(stride.begin(), p.stride_d);
    pad.insert(pad.begin(), p.pad_d);
    dilation.insert(dilation.begin(), p.dilation_d);
    output_pad.push_back(0);
  }
  if (p.direction == Direction::kBackwardFilter) {
    return std::get<1>(at::convolution_backward(
        src[1], src[0], at::zeros(weight_sizes(p), src[0].options()), std::nullopt, stride, pad,
        dilation, false, output_pad, p.groups, {false, true, false}));
  }
  const bool transposed = p.direction == Direction::kBackwardData;
  if (transposed) {
    const auto filter = w.weights.sizes().slice(2);
    const auto wanted = result_sizes(p);
    const auto given = input_sizes(p)[0];
    for (std::size_t i = 0; i < output_pad.size(); ++i) {
      output_pad[i] = wanted[i + 2] - ((given[i + 2] - 1) * stride[i] - 2 * pad[i] +
                                       dilation[i] * (filter[i] - 1) + 1);
    }
  }
  return at::convolution(with_uneven_padding(p, src[0]), w.weights,
                         w.bias.defined() ? std::optional(w.bias) : std::nullopt, stride, pad,
                         dilation, transposed, output_pad, p.groups);
}

// Computes the convolution image by image if it is large, because ATen unfolds all images at once,
// with 8 r s bytes per element.
at::Tensor reference_conv_by_image(const ConvProblem& p, const std::vector<at::Tensor>& src,
                                   const LayerWeights& w) {
  constexpr std::int64_t kMostUnfoldedBytes = std::int64_t{256} << 20;
  const bool is_one = p.n == 1 || p.direction == Direction::kBackwardFilter;
  if (is_one || 8 * p.t * p.r * p.s * src[0].numel() <= kMostUnfoldedBytes) {
    return reference_conv(p, src, w);
  }
  std::vector<at::Tensor> images;
  for (std::int64_t i = 0; i < p.n; ++i) {
    images.push_back(reference_conv(p, {src[0].narrow(0, i, 1)}, w));
  }
  return at::cat(images);
}

at::Tensor reference_pool(const PoolProblem& p, const at::Tensor& src) {
  switch (p.kind) {
    case PoolKind::kMax:
      return at::max_pool2d(src, {p.r, p.s}, {p.stride_h, p.stride_w}, {p.pad_h, p.pad_w},
                            {p.dilation_h, p.dilation_w}, p.ceil_mode);
    case PoolKind::kAverage:
      return at::avg_pool2d(src, {p.r, p.s}, {p.stride_h, p.stride_w}, {p.pad_h, p.pad_w},
                            p.ceil_mode, p.count_include_pad);
    case PoolKind::kAdaptiveAverage:
      return at::adaptive_avg_pool2d(src, {p.p, p.q});
  }
  return {};
}

at::Tensor reference_resize(const ResizeProblem& p, const at::Tensor& src) {
  // torch finds the nearest element in the tensor's own precision, and f64 differs at a few sizes.
  const at::ScalarType type = scalar_type(p.dtype);
  if (p.kind == ResizeKind::kNearest) {
    return at::upsample_nearest2d(src.to(type), {p.p, p.q}).to(src.scalar_type());
  }
  return at::upsample_bilinear2d(src, {p.p, p.q}, p.align_corners);
}

at::Tensor convert(const at::Tensor& tensor, at::TensorOptions options) {
  return tensor.defined() ? tensor.to(options) : tensor;
}

// Disables cuDNN while it exists. cuDNN is checked on a GPU, so the reference must not come from
// it.
class WithoutCudnn {
 public:
  WithoutCudnn() { at::globalContext().setUserEnabledCuDNN(false); }
  ~WithoutCudnn() { at::globalContext().setUserEnabledCuDNN(was_enabled_); }
  WithoutCudnn(const WithoutCudnn&) = delete;
  WithoutCudnn& operator=(const WithoutCudnn&) = delete;

 private:
  bool was_enabled_ = at::globalContext().userEnabledCuDNN();
};

using Inputs = std::vector<at::Tensor>;

// Each overload computes one kind of problem without its epilogue.
at::Tensor compute(const ConvProblem& p, const Inputs& src, const LayerWeights& w) {
  return reference_conv_by_image(p, src, w);
}
at::Tensor compute(const PoolProblem& p, const Inputs& src, const LayerWeights&) {
  return reference_pool(p, src[0]);
}
at::Tensor compute(const EltwiseProblem& p, const Inputs& src, const LayerWeights&) {
  switch (p.kind) {
    case EltwiseKind::kActivation:
      return src[0];  // the epilogue does all
    case EltwiseKind::kAdd:
      return src[0] + src[1];
    case EltwiseKind::kMul:
      return src[0] * src[1];
    case EltwiseKind::kSub:
      return src[0] - src[1];
  }
  return {};
}
at::Tensor compute(const ScaleShiftProblem&, const Inputs& src, const LayerWeights& w) {
  return src[0] * w.weights.view({-1, 1, 1}) + w.bias.view({-1, 1, 1});
}
at::Tensor compute(const LayerNormProblem& p, const Inputs& src, const LayerWeights& w) {
  return channel_norm(p.kind, src[0], w.weights, w.bias, p.epsilon, 1);
}
at::Tensor compute(const GroupNormProblem& p, const Inputs& src, const LayerWeights& w) {
  return at::group_norm(src[0], p.groups, w.weights, w.bias, p.epsilon);
}
at::Tensor compute(const ConcatProblem& p, const Inputs& src, const LayerWeights&) {
  return at::channel_shuffle(at::cat(src, 1), p.groups);
}
at::Tensor compute(const SliceProblem& p, const Inputs& src, const LayerWeights&) {
  return src[0].narrow(1, p.begin, p.k);
}
at::Tensor compute(const ShuffleProblem& p, const Inputs& src, const LayerWeights&) {
  return at::channel_shuffle(src[0], p.groups);
}
at::Tensor compute(const PixelShuffleProblem& p, const Inputs& src, const LayerWeights&) {
  return at::pixel_shuffle(src[0], p.factor);
}
at::Tensor compute(const ResizeProblem& p, const Inputs& src, const LayerWeights&) {
  return reference_resize(p, src[0]);
}
at::Tensor compute(const LinearProblem&, const Inputs& src, const LayerWeights& w) {
  return at::linear(src[0], w.weights, w.bias.defined() ? std::optional(w.bias) : std::nullopt);
}
at::Tensor compute(const TransformProblem&, const Inputs& src, const LayerWeights&) {
  return src[0];  // no logical value changes
}
at::Tensor compute(const BatchNormProblem& p, const Inputs& src, const LayerWeights& w) {
  return batch_norm_step(p, src, w);
}
at::Tensor compute(const ActivationGradientProblem& p, const Inputs& src, const LayerWeights&) {
  return activation_gradient(src[0], src[1], p.activation);
}
at::Tensor compute(const PoolGradientProblem& p, const Inputs& src, const LayerWeights&) {
  return pool_gradient(p.pool, src);
}
at::Tensor compute(const ChannelSumsProblem& p, const Inputs& src, const LayerWeights&) {
  return channel_sums(p, src);
}
at::Tensor compute(const AttentionProblem& p, const Inputs& src, const LayerWeights&) {
  return attend(p, src);
}
at::Tensor compute(const ConvChainProblem&, const Inputs&, const LayerWeights&) {
  TORCHALGO_ASSERT(false);  // its layers are computed one by one
}

// Computes one operation with its epilogue.
at::Tensor reference_layer(const Problem& problem, const std::vector<at::Tensor>& src,
                           const LayerWeights& weights, const at::Tensor& residual) {
  at::Tensor result = std::visit([&](const auto& p) { return compute(p, src, weights); }, problem);
  for (const PostOp& op : epilogue_of(problem)) {
    if (op == PostOp::kAdd) result = result + residual;
    if (is_activation(op)) result = activated(result, op);
  }
  return result;
}

}  // namespace

at::Tensor reference_result(const Problem& problem, const Sample& sample, at::ScalarType type) {
  // Above this a CPU takes seconds.
  constexpr double kMostFlopsOnCpu = 2e9;
  const at::Device device =
      flop_count(problem) <= kMostFlopsOnCpu ? at::Device(at::kCPU) : sample.src.at(0).device();
  std::optional<WithoutCudnn> without_cudnn;
  if (device.is_cuda()) without_cudnn.emplace();
  const auto options = at::TensorOptions().device(device).dtype(type);
  std::vector<at::Tensor> src;
  for (const at::Tensor& tensor : sample.src) src.push_back(convert(tensor, options));
  const at::Tensor residual = convert(sample.residual, options);
  auto weights = sample.weights.begin();
  for (const Problem& layer : layers_of(problem)) {
    const LayerWeights own = {convert(weights->weights, options), convert(weights->bias, options)};
    src = {reference_layer(layer, src, own, residual)};
    ++weights;
  }
  return src[0];
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/relu6.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "profiler/check.h"

namespace torchalgo {
namespace {

// Drawing takes longer than many a run that is timed, so that what is drawn repeats; after a prime
// number of elements, which no size or stride divides.
constexpr std::int64_t kDrawn = 65537;

at::Tensor randn(at::IntArrayRef sizes, at::Generator& generator) {
  const std::int64_t count = c10::multiply_integers(sizes);
  const auto options = at::TensorOptions().dtype(at::kDouble).device(generator.device());
  const at::Tensor drawn = at::randn({std::min(count, kDrawn)}, generator, options);
  if (count <= kDrawn) return drawn.view(sizes);
  return drawn.repeat({(count + kDrawn - 1) / kDrawn}).narrow(0, 0, count).view(sizes);
}

Weights sample_weights(const Problem& problem, at::Generator& generator) {
  const std::vector<std::int64_t> sizes = weight_sizes(problem);
  if (sizes.empty()) return {};
  if (std::holds_alternative<ScaleShiftProblem>(problem)) {
    return {randn(sizes, generator), randn(sizes, generator)};
  }
  double fan_in = 1;
  for (std::size_t i = 1; i < sizes.size(); ++i) fan_in *= static_cast<double>(sizes[i]);
  const at::Tensor weights = randn(sizes, generator) * std::sqrt(2.0 / fan_in);
  if (!has(epilogue_of(problem), PostOp::kBias)) return {weights, {}};
  return {weights, randn({result_sizes(problem)[1]}, generator) * 0.1};
}

at::Tensor reference_conv(const ConvProblem& p, const std::vector<at::Tensor>& src,
                          const Weights& w) {
  std::vector<std::int64_t> stride = {p.stride_h, p.stride_w}, pad = {p.pad_h, p.pad_w};
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
  return at::convolution(src[0], w.weights, w.bias.defined() ? std::optional(w.bias) : std::nullopt,
                         stride, pad, dilation, transposed, output_pad, p.groups);
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
    return at::upsample_nearest2d(src.to(type), {p.p, p.q}).to(at::kDouble);
  }
  return at::upsample_bilinear2d(src, {p.p, p.q}, p.align_corners);
}

at::Tensor apply(PostOp op, const at::Tensor& x) {
  switch (op) {
    case PostOp::kRelu:
      return at::relu(x);
    case PostOp::kRelu6:
      return at::relu6(x);
    case PostOp::kHardswish:
      return at::hardswish(x);
    case PostOp::kSilu:
      return at::silu(x);
    case PostOp::kSigmoid:
      return at::sigmoid(x);
    case PostOp::kHardsigmoid:
      return at::hardsigmoid(x);
    case PostOp::kBias:
    case PostOp::kAdd:
      break;
  }
  return x;
}

at::Tensor as_double(const at::Tensor& tensor, at::Device device) {
  return tensor.defined() ? tensor.to(device, at::kDouble) : tensor;
}

// A generator of its own: torch's state is the user's.
at::Generator make_generator(std::uint64_t seed, at::Device device) {
  if (device.is_cpu()) return at::detail::createCPUGenerator(seed);
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return generator;
}

// cuDNN is what is checked on a GPU, so the reference must not come from it.
class WithoutCudnn {
 public:
  WithoutCudnn() { at::globalContext().setUserEnabledCuDNN(false); }
  ~WithoutCudnn() { at::globalContext().setUserEnabledCuDNN(was_enabled_); }
  WithoutCudnn(const WithoutCudnn&) = delete;
  WithoutCudnn& operator=(const WithoutCudnn&) = delete;

 private:
  bool was_enabled_ = at::globalContext().userEnabledCuDNN();
};

at::Tensor reference_core(const Problem& problem, const std::vector<at::Tensor>& src,
                          const Weights& w) {
  if (const auto* conv = std::get_if<ConvProblem>(&problem)) return reference_conv(*conv, src, w);
  if (const auto* pool = std::get_if<PoolProblem>(&problem)) return reference_pool(*pool, src[0]);
  if (const auto* resize = std::get_if<ResizeProblem>(&problem))
    return reference_resize(*resize, src[0]);
  if (std::holds_alternative<ConcatProblem>(problem)) return at::cat(src, 1);
  if (std::holds_alternative<LinearProblem>(problem)) {
    return at::linear(src[0], w.weights, w.bias.defined() ? std::optional(w.bias) : std::nullopt);
  }
  if (std::holds_alternative<ScaleShiftProblem>(problem)) {
    return src[0] * w.weights.view({-1, 1, 1}) + w.bias.view({-1, 1, 1});
  }
  if (const auto* eltwise = std::get_if<EltwiseProblem>(&problem)) {
    if (eltwise->kind == EltwiseKind::kAdd) return src[0] + src[1];
    if (eltwise->kind == EltwiseKind::kMul) return src[0] * src[1];
  }
  return src[0];  // an activation is all epilogue; a transform changes no logical value
}

}  // namespace

Sample make_sample(const Problem& problem, std::uint64_t seed, at::Device device) {
  at::Generator generator = make_generator(seed, device);
  const at::ScalarType type = scalar_type(dtype_of(problem));
  Sample sample;
  for (const auto& sizes : input_sizes(problem)) {
    // Zeros and positive values as after a ReLU, and some negative ones, which activations treat
    // apart.
    at::Tensor src = randn(sizes, generator);
    sample.src.push_back(at::relu(src).sub_(0.1).to(type));
  }
  if (has(epilogue_of(problem), PostOp::kAdd)) {
    sample.residual = sample.src.back();
    sample.src.pop_back();
  }
  sample.weights = sample_weights(problem, generator);
  if (sample.weights.weights.defined()) sample.weights.weights = sample.weights.weights.to(type);
  if (sample.weights.bias.defined()) sample.weights.bias = sample.weights.bias.to(type);
  return sample;
}

at::Tensor reference_result(const Problem& problem, const Sample& sample) {
  // Above this a CPU takes seconds.
  constexpr double kMostFlopsOnCpu = 2e9;
  const at::Device device =
      flop_count(problem) <= kMostFlopsOnCpu ? at::Device(at::kCPU) : sample.src.at(0).device();
  std::optional<WithoutCudnn> without_cudnn;
  if (device.is_cuda()) without_cudnn.emplace();
  std::vector<at::Tensor> src;
  for (const at::Tensor& tensor : sample.src) src.push_back(as_double(tensor, device));
  const Weights weights = {as_double(sample.weights.weights, device),
                           as_double(sample.weights.bias, device)};
  at::Tensor result = reference_core(problem, src, weights);
  for (const PostOp op : epilogue_of(problem)) {
    if (op == PostOp::kAdd) result = result + as_double(sample.residual, device);
    if (is_activation(op)) result = apply(op, result);
  }
  return result;
}

}  // namespace torchalgo

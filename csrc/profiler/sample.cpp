// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/where.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "profiler/check.h"
#include "provider/gradients.h"

namespace torchalgo {
namespace {

// Makes a generator of its own, because the state of torch's generator belongs to the user.
at::Generator make_generator(std::uint64_t seed, at::Device device) {
  if (device.is_cpu()) return at::detail::createCPUGenerator(seed);
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return generator;
}

// Drawing numbers often takes longer than a timed run. So the numbers repeat after this many
// elements, a prime that no size or stride divides.
constexpr std::int64_t kDrawn = 65537;

at::Tensor randn(at::IntArrayRef sizes, at::Generator& generator) {
  const std::int64_t count = c10::multiply_integers(sizes);
  const auto options = at::TensorOptions().dtype(at::kDouble).device(generator.device());
  const at::Tensor drawn = at::randn({std::min(count, kDrawn)}, generator, options);
  if (count <= kDrawn) return drawn.view(sizes);
  return drawn.repeat({(count + kDrawn - 1) / kDrawn}).narrow(0, 0, count).view(sizes);
}

bool has_activation(const Problem& problem) {
  const Epilogue& epilogue = epilogue_of(problem);
  return std::any_of(epilogue.begin(), epilogue.end(), is_activation);
}

// ReLU6, hardswish and hardsigmoid bend at -3, 3 and 6: a standard deviation of 1 would miss them.
constexpr double kGainOfActivations = 4;

// Draws weights for inputs of about the size `size`, so that results have about the size 1. If
// `is_offset`, their sums are above 0 as a rule. All pixels are then about this sum, and bounds
// relative to a result that is near 0 in all channels would refuse correct algorithms.
LayerWeights sample_layer(const Problem& problem, double size, bool is_offset,
                          at::Generator& generator, at::ScalarType type) {
  const std::vector<std::int64_t> sizes = weight_sizes(problem);
  if (sizes.empty()) return {};
  const double gain = (has_activation(problem) ? kGainOfActivations : 1) / size;
  if (sizes.size() == 1) {  // scale and shift
    const at::Tensor scale = randn(sizes, generator) * gain;
    return {scale.to(type), randn(sizes, generator).to(type)};
  }
  double fan_in = 1;
  for (std::size_t i = 1; i < sizes.size(); ++i) fan_in *= static_cast<double>(sizes[i]);
  const double lift = is_offset ? 2 / std::sqrt(fan_in) : 0;  // two deviations of a sum
  const at::Tensor weights = (randn(sizes, generator) + lift) * (gain * std::sqrt(2.0 / fan_in));
  const std::vector<std::int64_t> bias = bias_sizes(problem);
  if (bias.empty()) return {weights.to(type), {}};
  return {weights.to(type), (randn(bias, generator) * 0.1).to(type)};
}

Weights sample_weights(const Problem& problem, double offset, at::Generator& generator,
                       at::ScalarType type) {
  double size = subtracts_mean(problem) ? 1 : std::max(1.0, offset);
  Weights weights;
  for (const Problem& layer : layers_of(problem)) {
    weights.push_back(sample_layer(layer, size, offset > 0, generator, type));
    if (weights.back().weights.defined()) size = 1;  // what the next layer reads
  }
  return weights;
}

constexpr double kEighth = 1.15;  // an eighth of a normal distribution is above this

// Returns values as after a ReLU, except that an eighth of them keeps its sign, and an eighth is
// zero, half of these -0.
at::Tensor sample_input(at::IntArrayRef sizes, at::Generator& generator) {
  const at::Tensor values = randn(sizes, generator), kind = randn(sizes, generator);
  const at::Tensor rectified = at::where(kind.lt(-kEighth), values * 0.0, at::relu(values));
  return at::where(kind.gt(kEighth), values, rectified);
}

// Returns values on both sides of each kink of an activation, an eighth of which is zero, half of
// these -0.
at::Tensor sample_around_kinks(at::IntArrayRef sizes, at::Generator& generator) {
  const at::Tensor values = randn(sizes, generator) * kGainOfActivations;
  return at::where(randn(sizes, generator).lt(-kEighth), values * 0.0, values);
}

// Returns whether input `i` has the sample's offset. The others are factors of inputs that have it,
// gradients, or the input of an activation's derivative, which is 0 far from its kinks. An
// attention reads the offset in its values: with large scores, each query would read a single key.
bool has_offset(const Problem& problem, std::size_t i) {
  if (std::holds_alternative<AttentionProblem>(problem)) return i == 2;
  if (const auto* norm = std::get_if<BatchNormProblem>(&problem)) {
    const bool is_forward =
        norm->step == BatchNormStep::kMoments || norm->step == BatchNormStep::kNormalize;
    return i == (is_forward ? 0 : 1);
  }
  return i == 0 ||
         !(is_convolution(problem) || std::holds_alternative<ActivationGradientProblem>(problem));
}

// Makes means with the offset, and variances, of the input [2, c, 1, 1] that a batch norm reads.
void make_moments_valid(const Problem& problem, double offset, Sample& sample) {
  if (!std::holds_alternative<BatchNormProblem>(problem) || sample.src.size() < 2) return;
  const std::size_t moments =
      std::get<BatchNormProblem>(problem).step == BatchNormStep::kNormalize ? 1 : 2;
  sample.src[moments][0].add_(offset);
  sample.src[moments][1].abs_().add_(0.5);
}

// Sets the gradient to 0 where rounding may decide on which side of a bend an activation's input
// is: that input is computed again from x.
void clear_gradient_at_bends(const Problem& problem, Sample& sample) {
  const auto* norm = std::get_if<BatchNormProblem>(&problem);
  if (norm == nullptr || !norm->activation) return;
  BatchNormProblem forward = *norm;
  forward.step = BatchNormStep::kNormalize;
  const LayerWeights weights = {sample.weights[0].weights.to(at::kDouble),
                                sample.weights[0].bias.to(at::kDouble)};
  const std::vector<at::Tensor> src = {sample.src[1].to(at::kDouble),
                                       sample.src[2].to(at::kDouble)};
  const at::Tensor y = batch_norm_step(forward, src, weights);
  for (const double bend : {0.0, 6.0, norm->activation->numbers[0], norm->activation->numbers[1]}) {
    sample.src[0].masked_fill_((y - bend).abs().lt(1e-3), 0);
  }
}

}  // namespace

Sample make_sample(const Problem& problem, std::uint64_t seed, at::Device device, double offset) {
  at::Generator generator = make_generator(seed, device);
  const at::ScalarType type = scalar_type(dtype_of(problem));
  const bool is_wide = std::holds_alternative<EltwiseProblem>(problem) && has_activation(problem);
  const bool is_gradient = std::holds_alternative<ActivationGradientProblem>(problem);
  Sample sample;
  const auto shapes = input_sizes(problem);
  const bool has_residual = has(epilogue_of(problem), PostOp::kAdd);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const bool is_residual = has_residual && i + 1 == shapes.size();
    const bool is_offset = offset > 0 && !is_residual && has_offset(problem, i);
    const at::Tensor src = is_offset     ? randn(shapes[i], generator) + offset
                           : is_gradient ? sample_around_kinks(shapes[i], generator)
                           : is_wide     ? randn(shapes[i], generator) * kGainOfActivations
                                         : sample_input(shapes[i], generator);
    (is_residual ? sample.residual : sample.src.emplace_back()) = src.to(type);
  }
  make_moments_valid(problem, offset, sample);
  sample.weights = sample_weights(problem, offset, generator, type);
  clear_gradient_at_bends(problem, sample);
  return sample;
}

at::Tensor with_nans(const at::Tensor& tensor, std::uint64_t seed) {
  at::Generator generator = make_generator(seed, at::kCPU);
  const at::Tensor chosen = randn(tensor.sizes(), generator).gt(0);
  // A tensor of a few elements gets a NaN too.
  if (chosen.numel() > 0) chosen.view(-1)[chosen.numel() / 2].fill_(true);
  return tensor.masked_fill(chosen.to(tensor.device()), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace torchalgo

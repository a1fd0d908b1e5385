// SPDX-License-Identifier: BSD-3-Clause
// Checks the weights and the inputs of a planned op, and finds the problem that a call computes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "aten_algo/strided.h"
#include "base/error.h"
#include "base/error_code.h"
#include "ops/planned_op.h"
#include "provider/memory.h"

namespace torchalgo {
namespace {

// Returns `sizes` with each 1 replaced by the size of `other`, except for the channels, which the
// weights fix.
std::vector<std::int64_t> broadcast_sizes(at::IntArrayRef sizes, at::IntArrayRef other) {
  std::vector<std::int64_t> result = sizes.vec();
  for (std::size_t i = 0; i < result.size() && i < other.size(); ++i) {
    if (i != 1 && result[i] == 1) result[i] = other[i];
  }
  return result;
}

bool is_cpu_or_cuda(const at::Tensor& tensor) { return tensor.is_cpu() || tensor.is_cuda(); }

// Returns a tensor whose sizes are numbers.
at::Tensor with_fixed_sizes(const at::Tensor& tensor) {
  const bool is_symbolic =
      tensor.defined() && tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  return is_symbolic ? on_meta(tensor) : tensor;
}

}  // namespace

void PlannedOp::check_weights(const Problem& layer, LayerWeights& own) const {
  const auto expected = weight_sizes(layer);
  TORCHALGO_CHECK(expected.empty() == !own.weights.defined(),
                  "TA4302 torchalgo: layer '{}': {} weights, but the problem {} ({})", state_.layer,
                  expected.empty() ? "got" : "got no", expected.empty() ? "has none" : "needs them",
                  state_.problem);
  const bool needs_bias = !bias_sizes(layer).empty();
  TORCHALGO_CHECK(!needs_bias || own.bias.defined(),
                  "TA4302 torchalgo: layer '{}': got no bias, but the problem adds one ({})",
                  state_.layer, state_.problem);
  if (expected.empty()) return;
  if (expected.size() == 4 && own.weights.dim() == 3 && expected[2] == 1) {
    own.weights = own.weights.unsqueeze(2);  // of a 1-D convolution
  }
  TORCHALGO_CHECK(
      own.weights.sizes() == at::IntArrayRef(expected) && own.weights.scalar_type() == dtype_ &&
          is_cpu_or_cuda(own.weights) && own.weights.device() == weights_device(),
      "TA4302 torchalgo: layer '{}': weights are {} [{}] on {}, expected {} [{}] on cpu or cuda "
      "({})",
      state_.layer, c10::toString(own.weights.scalar_type()), fmt::join(own.weights.sizes(), ", "),
      own.weights.device().str(), c10::toString(dtype_), fmt::join(expected, ", "), state_.problem);
  own.weights = own.weights.contiguous();
  if (!own.bias.defined()) return;
  const std::int64_t channels = result_sizes(layer)[1];
  TORCHALGO_CHECK(
      own.bias.dim() == 1 && own.bias.size(0) == channels && own.bias.scalar_type() == dtype_ &&
          own.bias.device() == weights_device(),
      "TA4302 torchalgo: layer '{}': the bias is {} [{}] on {}, expected {} [{}] on {} ({})",
      state_.layer, c10::toString(own.bias.scalar_type()), fmt::join(own.bias.sizes(), ", "),
      own.bias.device().str(), c10::toString(dtype_), channels, own.weights.device().str(),
      state_.problem);
  own.bias = own.bias.contiguous();
}

PlannedOp::Inputs PlannedOp::read_inputs(std::span<const at::Tensor> src,
                                         const at::Tensor& residual) const {
  const std::size_t expected = planned_sizes_.size() - (has_residual_ ? 1 : 0);
  TORCHALGO_CHECK(src.size() == expected,
                  "TA4303 torchalgo: layer '{}': expected {} inputs, got {} ({})", state_.layer,
                  expected, src.size(), state_.problem);
  TORCHALGO_CHECK(residual.defined() == has_residual_,
                  "TA4303 torchalgo: layer '{}': {} residual, but the problem {} ({})",
                  state_.layer, has_residual_ ? "got no" : "got a",
                  has_residual_ ? "adds one" : "adds none", state_.problem);
  Inputs inputs;
  for (std::size_t i = 0; i < src.size(); ++i) {
    inputs.src.push_back(read_input(with_fixed_sizes(src[i]), i, from_));
  }
  if (has_residual_) inputs.residual = read_input(with_fixed_sizes(residual), src.size(), to_);
  const at::Device device = inputs.src[0].device();
  for (const at::Tensor& tensor : inputs.src) check_device(tensor, device);
  if (has_residual_) check_device(inputs.residual, device);
  broadcast(inputs);
  for (std::size_t i = 0; i < planned_sizes_.size(); ++i) {
    const bool is_residual = i == inputs.src.size();
    const at::Tensor& tensor = is_residual ? inputs.residual : inputs.src[i];
    inputs.sizes.push_back(logical_sizes(tensor, i, is_residual ? to_ : from_));
  }
  return inputs;
}

void PlannedOp::check_device(const at::Tensor& tensor, at::Device device) const {
  TORCHALGO_CHECK(
      tensor.device() == device,
      "TA4305 torchalgo: layer '{}': its inputs are on {} and {}: move them to one device",
      state_.layer, device.str(), tensor.device().str());
}

void PlannedOp::broadcast(Inputs& inputs) const {
  const auto expand_to = [](at::Tensor& tensor, at::IntArrayRef sizes, Layout layout) {
    if (tensor.sizes() == sizes) return;
    tensor = tensor.expand(sizes);
    tensor = is_blocked(layout) ? tensor.contiguous() : to_strided(tensor, layout);
  };
  at::Tensor& first = inputs.src[0];
  const auto* eltwise = std::get_if<EltwiseProblem>(&problem_);
  if (eltwise != nullptr && inputs.src.size() == 2) {
    at::Tensor& second = inputs.src[1];
    const Sizes first_sizes = broadcast_sizes(first.sizes(), second.sizes());
    Sizes second_sizes = broadcast_sizes(second.sizes(), first.sizes());
    if (eltwise->channelwise) {  // the algorithm repeats it over the image
      for (const int i : {2, 3}) second_sizes[i] = second.size(i);
    }
    expand_to(first, first_sizes, from_);
    expand_to(second, second_sizes, from_);
  } else if (has_residual_ && inputs.src.size() == 1) {
    Sizes batch = first.sizes().vec();
    if (batch[0] == 1) batch[0] = inputs.residual.size(0);
    expand_to(first, batch, from_);
    if (batch[0] == 0) return;
    const Problem alone = with_epilogue(problem_, {});
    const Sizes sizes = result_sizes(resized(alone, {logical_sizes(first, 0, from_)}));
    const TensorShape result = shape_in(sizes, to_);
    expand_to(inputs.residual, broadcast_sizes(inputs.residual.sizes(), result.sizes), to_);
  }
}

PlannedOp::Sizes PlannedOp::logical_sizes(const at::Tensor& tensor, std::size_t index,
                                          Layout layout) const {
  if (!is_blocked(layout)) return tensor.sizes().vec();
  return {tensor.size(0), planned_sizes_[index][1], tensor.size(2), tensor.size(3)};
}

at::Tensor PlannedOp::read_input(const at::Tensor& tensor, std::size_t index, Layout layout) const {
  const auto& planned = planned_sizes_[index];
  TORCHALGO_CHECK(tensor.defined() && (is_cpu_or_cuda(tensor) || tensor.is_meta()) &&
                      tensor.layout() == at::kStrided,
                  "TA4305 torchalgo: layer '{}': input {} is {}, expected a dense tensor on the "
                  "CPU or on a GPU",
                  state_.layer, index,
                  tensor.defined() ? "on " + tensor.device().str() : "undefined");
  const std::optional<at::Device> device = weights_device();
  TORCHALGO_CHECK(!device || tensor.device() == *device || tensor.is_meta(),
                  "TA4305 torchalgo: layer '{}': input {} is on {}, its weights are on {}: move "
                  "the input there, or load the model with map_location='{}'",
                  state_.layer, index, tensor.device().str(), device->str(), tensor.device().str());
  const at::ScalarType dtype = scalar_type(element_type(layout, dtype_of(problem_)));
  TORCHALGO_CHECK(tensor.scalar_type() == dtype,
                  "TA4304 torchalgo: layer '{}' was planned for {}, got {}: convert the input or "
                  "optimize the model in that dtype",
                  state_.layer, c10::toString(dtype), c10::toString(tensor.scalar_type()));
  if (is_blocked(layout)) {
    const std::int64_t block = block_size(layout);
    TORCHALGO_CHECK(tensor.dim() == 5 && tensor.size(4) == block &&
                        tensor.size(1) == (planned[1] + block - 1) / block,
                    "TA4303 torchalgo: layer '{}': input {} has sizes [{}], expected {} of {} "
                    "channels: [n, {}, h, w, {}]",
                    state_.layer, index, fmt::join(tensor.sizes(), ", "), to_string(layout),
                    planned[1], (planned[1] + block - 1) / block, block);
    return tensor.contiguous();
  }
  const at::Tensor image = may_be_1d_ && tensor.dim() == 3 ? tensor.unsqueeze(2) : tensor;
  TORCHALGO_CHECK(image.dim() == static_cast<std::int64_t>(planned.size()),
                  "TA4303 torchalgo: layer '{}': input {} has rank {}, expected {} as in [{}] ({})",
                  state_.layer, index, tensor.dim(), planned.size(), fmt::join(planned, ", "),
                  state_.problem);
  return to_strided(image, layout);
}

Problem PlannedOp::problem_for(const std::vector<Sizes>& sizes, at::IntArrayRef size) const {
  Problem problem = sizes == planned_sizes_ ? problem_ : resized(problem_, sizes);
  if (size.empty()) return problem;
  auto* const resize = std::get_if<ResizeProblem>(&problem);
  auto* const pool = std::get_if<PoolProblem>(&problem);
  const bool takes_size = (resize != nullptr && resize->scale_h == 0) ||
                          (pool != nullptr && pool->kind == PoolKind::kAdaptiveAverage);
  TORCHALGO_CHECK(takes_size && size.size() == 2 && size[0] >= 1 && size[1] >= 1,
                  "TA4303 torchalgo: layer '{}': the size of the result is [{}], expected {} ({})",
                  state_.layer, fmt::join(size, ", "),
                  takes_size ? "a height and a width of 1 or more" : "none", state_.problem);
  (resize != nullptr ? resize->p : pool->p) = size[0];
  (resize != nullptr ? resize->q : pool->q) = size[1];
  return problem;
}

Problem PlannedOp::resized(const Problem& problem, const std::vector<Sizes>& sizes) const {
  try {
    return with_input_sizes(problem, sizes);
  } catch (const Error& error) {
    throw Error(with_inner_code(
        fmt::format("TA4303 torchalgo: layer '{}': {}", state_.layer, error.what())));
  }
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/convolution.h"

#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/sum.h>

#include "all_algorithms.h"
#include "ops/conv.h"
#include "ops/recorded_runs.h"
#include "ops/torch_path.h"

namespace torchalgo {
namespace {

// Returns true if no argument, setting or plan constrains the choice, so that PyTorch's own path
// runs without any search.
bool is_unconstrained(std::string_view choice) {
  return (choice.empty() || choice == "auto" || choice == kFree) && !is_recording() &&
         (choice == kFree || conv_settings().is_free());
}

// Returns true if the output sizes can be computed. If not, PyTorch explains what is wrong.
bool has_shape(const ConvArgs& args) {
  const std::int64_t rank = args.input.dim();
  if (rank < 3 || rank > 5 || args.weight.dim() != rank) return false;
  const auto fits = [&](at::IntArrayRef values) {
    return values.size() == 1 || static_cast<std::int64_t>(values.size()) == rank - 2;
  };
  if (!fits(args.stride) || !fits(args.padding) || !fits(args.dilation)) return false;
  if (args.transposed && !fits(args.output_padding)) return false;
  for (const std::int64_t stride : args.stride) {
    if (stride < 1) return false;
  }
  return true;
}

// Fills the fields that all three computations share. The caller adds tensors and result.
ConvCall call_of(const ConvArgs& args, Direction direction) {
  ConvCall call;
  call.direction = direction;
  call.result_format = conv_memory_format(args.input, args.weight);
  call.stride = args.stride;
  call.padding = args.padding;
  call.dilation = args.dilation;
  call.groups = args.groups;
  return call;
}

ConvCall forward_call(const ConvArgs& args, const OptionalTensor& bias) {
  ConvCall call = call_of(args, args.transposed ? Direction::kBackwardData : Direction::kForward);
  (args.transposed ? call.dst : call.src) = args.input;
  call.weights = args.weight;
  if (bias) call.bias = *bias;
  call.result_sizes = conv_output_sizes(args);
  return call;
}

ConvCall input_gradient_call(const ConvArgs& args, const at::Tensor& grad_output) {
  ConvCall call = call_of(args, args.transposed ? Direction::kForward : Direction::kBackwardData);
  (args.transposed ? call.src : call.dst) = grad_output;
  call.weights = args.weight;
  call.result_sizes = at::DimVector(args.input.sizes());
  return call;
}

ConvCall weight_gradient_call(const ConvArgs& args, const at::Tensor& grad_output) {
  ConvCall call = call_of(args, Direction::kBackwardFilter);
  call.src = args.transposed ? grad_output : args.input;
  call.dst = args.transposed ? args.input : grad_output;
  call.result_sizes = at::DimVector(args.weight.sizes());
  return call;
}

Gradients torch_backward(const at::Tensor& grad_output, const ConvArgs& args,
                         at::OptionalIntArrayRef bias_sizes, std::array<bool, 3> mask) {
  const TorchPath inside;
  return at::compositeexplicitautograd::convolution_backward(
      grad_output, args.input, args.weight, bias_sizes, args.stride, args.padding, args.dilation,
      args.transposed, args.output_padding, args.groups, mask);
}

at::Tensor bias_gradient(const at::Tensor& grad_output) {
  at::DimVector dims = {0};
  for (std::int64_t dim = 2; dim < grad_output.dim(); ++dim) dims.push_back(dim);
  return at::sum(grad_output, dims);
}

// Returns the choice of `argument` and settings as one text, which later settings do not change.
std::string fixed_choice(std::string_view argument, const ConvProblem& problem,
                         const ConvSettings& settings) {
  Choice all = parse_choice(argument);
  for (const Choice* choice :
       {&settings.context.of(problem.direction), &settings.flags.of(problem.direction),
        find_planned(settings.planned, problem)}) {
    if (choice != nullptr) all.insert(all.end(), choice->begin(), choice->end());
  }
  all.push_back({std::nullopt, std::string(kFree)});
  return to_string(all);
}

}  // namespace

std::optional<at::Tensor> run_chosen_forward(const ConvArgs& args, const OptionalTensor& bias,
                                             std::string_view choice) {
  if (is_unconstrained(choice) || !has_shape(args)) return std::nullopt;
  return run_convolution(forward_call(args, bias), choice, all_algorithms());
}

at::Tensor run_forward(const ConvArgs& args, const OptionalTensor& bias, std::string_view choice) {
  if (auto result = run_chosen_forward(args, bias, choice)) return *std::move(result);
  const TorchPath inside;
  return at::compositeexplicitautograd::convolution(args.input, args.weight, bias, args.stride,
                                                    args.padding, args.dilation, args.transposed,
                                                    args.output_padding, args.groups);
}

Gradients run_backward(const at::Tensor& grad_output, const ConvArgs& args,
                       at::OptionalIntArrayRef bias_sizes, std::array<bool, 3> mask,
                       std::string_view backward_data, std::string_view backward_filter) {
  const bool has_shapes = has_shape(args) && grad_output.dim() == args.input.dim();
  at::Tensor grad_input, grad_weight;
  if (mask[0] && !is_unconstrained(backward_data) && has_shapes) {
    auto result =
        run_convolution(input_gradient_call(args, grad_output), backward_data, all_algorithms());
    if (result) grad_input = *std::move(result);
  }
  if (mask[1] && !is_unconstrained(backward_filter) && has_shapes) {
    auto result =
        run_convolution(weight_gradient_call(args, grad_output), backward_filter, all_algorithms());
    if (result) grad_weight = *std::move(result);
  }
  Gradients gradients;
  // oneDNN computes the gradient of the bias together with that of the weights, even if it is not
  // requested.
  const bool sums_bias = mask[2] && (grad_weight.defined() || !mask[1]) &&
                         (grad_weight.defined() || grad_input.defined());
  const std::array<bool, 3> rest = {mask[0] && !grad_input.defined(),
                                    mask[1] && !grad_weight.defined(), mask[2] && !sums_bias};
  if (rest[0] || rest[1] || rest[2]) {
    gradients = torch_backward(grad_output, args, bias_sizes, rest);
  }
  if (grad_input.defined()) std::get<0>(gradients) = std::move(grad_input);
  if (grad_weight.defined()) std::get<1>(gradients) = std::move(grad_weight);
  if (sums_bias) std::get<2>(gradients) = bias_gradient(grad_output);
  return gradients;
}

BackwardChoices fix_backward_choices(const ConvArgs& args, std::string_view backward_data,
                                     std::string_view backward_filter) {
  const ConvSettings& settings = conv_settings();
  const auto is_auto = [](std::string_view text) { return text.empty() || text == "auto"; };
  if (settings.is_free() && is_auto(backward_data) && is_auto(backward_filter)) {
    return {std::string(kFree), std::string(kFree)};
  }
  auto problem = has_shape(args) ? conv_problem(forward_call(args, std::nullopt)) : std::nullopt;
  if (!problem) return {std::string(backward_data), std::string(backward_filter)};
  problem->direction = args.transposed ? Direction::kForward : Direction::kBackwardData;
  BackwardChoices result;
  result.data = fixed_choice(backward_data, *problem, settings);
  problem->direction = Direction::kBackwardFilter;
  result.filter = fixed_choice(backward_filter, *problem, settings);
  return result;
}

}  // namespace torchalgo

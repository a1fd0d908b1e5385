// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>

#include "ops/choice.h"
#include "ops/conv_ops.h"
#include "ops/convolution.h"

// Derivatives in C++, so that a program without Python trains too. Forward mode (jvp) and
// functorch's grad are refused by torch::autograd::Function itself.
namespace torchalgo {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr ChoiceTexts kAllFree = {kFree, kFree, kFree};

// The arguments that are not tensors, kept for the derivatives.
struct Geometry {
  std::vector<c10::SymInt> stride, padding, dilation, output_padding;
  bool transposed = false;
  c10::SymInt groups = 1;

  static void save(AutogradContext* ctx, const SymConvArgs& args) {
    ctx->saved_data["stride"] = args.stride;
    ctx->saved_data["padding"] = args.padding;
    ctx->saved_data["dilation"] = args.dilation;
    ctx->saved_data["output_padding"] = args.output_padding;
    ctx->saved_data["transposed"] = args.transposed;
    ctx->saved_data["groups"] = args.groups;
  }

  static Geometry load(AutogradContext* ctx) {
    return {ctx->saved_data["stride"].toSymIntVector(),
            ctx->saved_data["padding"].toSymIntVector(),
            ctx->saved_data["dilation"].toSymIntVector(),
            ctx->saved_data["output_padding"].toSymIntVector(),
            ctx->saved_data["transposed"].toBool(),
            ctx->saved_data["groups"].toSymInt()};
  }

  [[nodiscard]] SymConvArgs args(const at::Tensor& input, const at::Tensor& weight) const {
    return {input, weight, stride, padding, dilation, transposed, output_padding, groups};
  }

  [[nodiscard]] at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight) const {
    return call_convolution(args(input, weight), std::nullopt, kAllFree);
  }

  [[nodiscard]] Gradients differentiate(const at::Tensor& grad_output, const at::Tensor& input,
                                        const at::Tensor& weight, std::array<bool, 2> mask) const {
    return call_convolution_backward(grad_output, args(input, weight), std::nullopt,
                                     {mask[0], mask[1], false}, kAllFree);
  }
};

at::Tensor defined_or_none(const at::Tensor& gradient, bool is_wanted) {
  return is_wanted ? gradient : at::Tensor();
}

struct BackwardFunction : torch::autograd::Function<BackwardFunction> {
  static variable_list forward(AutogradContext* ctx, const Variable& grad_output,
                               const Variable& input, const Variable& weight,
                               const at::OptionalSymIntArrayRef& bias_sizes,
                               const SymConvArgs& args, const std::array<bool, 3>& mask,
                               const ChoiceTexts& choices) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({grad_output, input, weight});
    ctx->set_materialize_grads(false);
    Geometry::save(ctx, args);
    ctx->saved_data["mask"] = c10::List<bool>({mask[0], mask[1], mask[2]});
    auto [grad_input, grad_weight, grad_bias] =
        call_convolution_backward(grad_output, args, bias_sizes, mask, choices);
    return {grad_input, grad_weight, grad_bias};
  }

  // The result of forward is linear in each of grad_output, input and weight, so its gradients are
  // convolutions again. They run PyTorch's own algorithms, because second derivatives have no
  // choices.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Variable &grad_output = saved[0], &input = saved[1], &weight = saved[2];
    const Geometry geometry = Geometry::load(ctx);
    const at::Tensor in_input = wanted(ctx, grads, 0), in_weight = wanted(ctx, grads, 1);
    const at::Tensor in_bias = wanted(ctx, grads, 2);
    at::Tensor of_grad_output, of_input, of_weight;
    if (ctx->needs_input_grad(0)) {
      if (in_input.defined()) of_grad_output = geometry.convolve(in_input, weight);
      if (in_weight.defined()) add(of_grad_output, geometry.convolve(input, in_weight));
      if (in_bias.defined()) add(of_grad_output, over_channels(in_bias, grad_output));
    }
    if (ctx->needs_input_grad(1) && in_weight.defined()) {
      of_input = std::get<0>(geometry.differentiate(grad_output, input, in_weight, {true, false}));
    }
    if (ctx->needs_input_grad(2) && in_input.defined()) {
      of_weight = std::get<1>(geometry.differentiate(grad_output, in_input, weight, {false, true}));
    }
    return {of_grad_output, of_input, of_weight, {}, {}, {}, {}};
  }

 private:
  // A result that was not requested is an empty tensor, and its gradient has no meaning.
  static at::Tensor wanted(AutogradContext* ctx, const variable_list& grads, std::size_t i) {
    return ctx->saved_data["mask"].toBoolList().get(i) ? grads[i] : at::Tensor();
  }

  static void add(at::Tensor& sum, const at::Tensor& term) {
    sum = sum.defined() ? at::add(sum, term) : term;
  }

  static at::Tensor over_channels(const at::Tensor& bias, const at::Tensor& like) {
    at::DimVector sizes(like.dim(), 1);
    sizes[1] = -1;
    return bias.reshape(sizes).expand_symint(like.sym_sizes());
  }
};

struct ConvolutionFunction : torch::autograd::Function<ConvolutionFunction> {
  static Variable forward(AutogradContext* ctx, const Variable& input, const Variable& weight,
                          const OptionalTensor& bias, const SymConvArgs& args,
                          const ChoiceTexts& choices) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({input, weight});
    Geometry::save(ctx, args);
    ctx->saved_data["has_bias"] = bias.has_value() && bias->defined();
    const BackwardChoices backward = backward_choices(args, choices);
    ctx->saved_data["backward_data"] = backward.data;
    ctx->saved_data["backward_filter"] = backward.filter;
    return call_convolution(args, bias, choices);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Variable &input = saved[0], &weight = saved[1];
    const Geometry geometry = Geometry::load(ctx);
    const bool has_bias = ctx->saved_data["has_bias"].toBool();
    const std::array<bool, 3> mask = {ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                                      has_bias && ctx->needs_input_grad(2)};
    const std::vector<c10::SymInt> bias_sizes = {
        geometry.transposed ? weight.sym_size(1) * geometry.groups : weight.sym_size(0)};
    const auto [grad_input, grad_weight, grad_bias] = call_convolution_backward(
        grads[0], geometry.args(input, weight),
        has_bias ? at::OptionalSymIntArrayRef(bias_sizes) : at::OptionalSymIntArrayRef(), mask,
        {{},
         ctx->saved_data["backward_data"].toStringRef(),
         ctx->saved_data["backward_filter"].toStringRef()});
    return {defined_or_none(grad_input, mask[0]),
            defined_or_none(grad_weight, mask[1]),
            defined_or_none(grad_bias, mask[2]),
            {},
            {}};
  }

 private:
  // The backward pass obeys the settings of the forward pass. A traced graph (torch.compile,
  // torch.export) outlives the settings of its trace. So it keeps only its own arguments and reads
  // the settings when it runs.
  static BackwardChoices backward_choices(const SymConvArgs& args, const ChoiceTexts& choices) {
    const bool is_traced = c10::impl::TorchDispatchModeTLS::any_modes_set() ||
                           args.input.unsafeGetTensorImpl()->is_python_dispatch() ||
                           !(args.input.is_cpu() || args.input.is_cuda());
    const auto stride = c10::asIntArrayRefSlowOpt(args.stride);
    const auto padding = c10::asIntArrayRefSlowOpt(args.padding);
    const auto dilation = c10::asIntArrayRefSlowOpt(args.dilation);
    const auto output_padding = c10::asIntArrayRefSlowOpt(args.output_padding);
    const auto groups = args.groups.maybe_as_int();
    if (is_traced || !stride || !padding || !dilation || !output_padding || !groups) {
      return {std::string(choices.backward_data), std::string(choices.backward_filter)};
    }
    return fix_backward_choices({args.input, args.weight, *stride, *padding, *dilation,
                                 args.transposed, *output_padding, *groups},
                                choices.backward_data, choices.backward_filter);
  }
};

// Without a gradient to compute, the bookkeeping of a Function costs more than a small convolution.
bool has_derivative(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias) {
  const auto has = [grad_mode = at::GradMode::is_enabled()](const at::Tensor& tensor) {
    return (grad_mode && tensor.requires_grad()) || tensor._fw_grad(/*level=*/0).defined();
  };
  return has(input) || has(weight) || (bias && bias->defined() && has(*bias));
}

at::Tensor convolution(const SymConvArgs& args, const OptionalTensor& bias,
                       const ChoiceTexts& choices) {
  if (has_derivative(args.input, args.weight, bias))
    return ConvolutionFunction::apply(args.input, args.weight, bias, args, choices);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_convolution(args, bias, choices);
}

Gradients convolution_backward(const at::Tensor& grad_output, const SymConvArgs& args,
                               at::OptionalSymIntArrayRef bias_sizes, std::array<bool, 3> mask,
                               const ChoiceTexts& choices) {
  const variable_list gradients = BackwardFunction::apply(grad_output, args.input, args.weight,
                                                          bias_sizes, args, mask, choices);
  return {gradients[0], gradients[1], gradients[2]};
}

TORCH_LIBRARY_IMPL(torchalgo, Autograd, m) {
  m.impl("convolution", ConvKernels<SymConvArgs>::forward<&convolution>);
  m.impl("convolution_backward", ConvKernels<SymConvArgs>::backward<&convolution_backward>);
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>
#include <string_view>
#include <tuple>

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
using SymInts = c10::SymIntArrayRef;
using OptionalTensor = std::optional<at::Tensor>;
using Gradients3 = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// The arguments that both functions pass on to their derivatives.
struct Geometry {
  std::vector<c10::SymInt> stride, padding, dilation, output_padding;
  bool transposed = false;
  c10::SymInt groups = 1;

  void save(AutogradContext* ctx) const {
    ctx->saved_data["stride"] = SymInts(stride);
    ctx->saved_data["padding"] = SymInts(padding);
    ctx->saved_data["dilation"] = SymInts(dilation);
    ctx->saved_data["output_padding"] = SymInts(output_padding);
    ctx->saved_data["transposed"] = transposed;
    ctx->saved_data["groups"] = groups;
  }

  static Geometry load(AutogradContext* ctx) {
    return {ctx->saved_data["stride"].toSymIntVector(),
            ctx->saved_data["padding"].toSymIntVector(),
            ctx->saved_data["dilation"].toSymIntVector(),
            ctx->saved_data["output_padding"].toSymIntVector(),
            ctx->saved_data["transposed"].toBool(),
            ctx->saved_data["groups"].toSymInt()};
  }

  [[nodiscard]] at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight) const {
    return call_convolution(input, weight, std::nullopt, stride, padding, dilation, transposed,
                            output_padding, groups, kFree, kFree, kFree);
  }

  [[nodiscard]] Gradients3 differentiate(const at::Tensor& grad_output, const at::Tensor& input,
                                         const at::Tensor& weight, std::array<bool, 2> mask) const {
    return call_convolution_backward(grad_output, input, weight, std::nullopt, stride, padding,
                                     dilation, transposed, output_padding, groups,
                                     {mask[0], mask[1], false}, kFree, kFree);
  }
};

at::Tensor defined_or_none(const at::Tensor& gradient, bool is_wanted) {
  return is_wanted ? gradient : at::Tensor();
}

struct BackwardFunction : torch::autograd::Function<BackwardFunction> {
  static variable_list forward(AutogradContext* ctx, const Variable& grad_output,
                               const Variable& input, const Variable& weight,
                               const at::OptionalSymIntArrayRef& bias_sizes,
                               const Geometry& geometry, const std::array<bool, 3>& mask,
                               const std::string& backward_data,
                               const std::string& backward_filter) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({grad_output, input, weight});
    ctx->set_materialize_grads(false);
    geometry.save(ctx);
    ctx->saved_data["mask"] = c10::List<bool>({mask[0], mask[1], mask[2]});
    auto [grad_input, grad_weight, grad_bias] = call_convolution_backward(
        grad_output, input, weight, bias_sizes, geometry.stride, geometry.padding,
        geometry.dilation, geometry.transposed, geometry.output_padding, geometry.groups, mask,
        backward_data, backward_filter);
    return {grad_input, grad_weight, grad_bias};
  }

  // What forward computes is linear in each of grad_output, input and weight, so that its gradients
  // are convolutions again, here PyTorch's own: second derivatives have no choices.
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
    return {of_grad_output, of_input, of_weight, {}, {}, {}, {}, {}};
  }

 private:
  // A result that was not asked for is an empty tensor, and its gradient means nothing.
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
                          const OptionalTensor& bias, const Geometry& geometry,
                          const std::string& forward, const std::string& backward_data,
                          const std::string& backward_filter) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({input, weight});
    geometry.save(ctx);
    ctx->saved_data["has_bias"] = bias.has_value() && bias->defined();
    const SettledChoices settled = settle(input, weight, geometry, backward_data, backward_filter);
    ctx->saved_data["backward_data"] = settled.backward_data;
    ctx->saved_data["backward_filter"] = settled.backward_filter;
    return call_convolution(input, weight, bias, geometry.stride, geometry.padding,
                            geometry.dilation, geometry.transposed, geometry.output_padding,
                            geometry.groups, forward, backward_data, backward_filter);
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
        grads[0], input, weight,
        has_bias ? at::OptionalSymIntArrayRef(bias_sizes) : at::OptionalSymIntArrayRef(),
        geometry.stride, geometry.padding, geometry.dilation, geometry.transposed,
        geometry.output_padding, geometry.groups, mask,
        ctx->saved_data["backward_data"].toStringRef(),
        ctx->saved_data["backward_filter"].toStringRef());
    return {defined_or_none(grad_input, mask[0]),
            defined_or_none(grad_weight, mask[1]),
            defined_or_none(grad_bias, mask[2]),
            {},
            {},
            {},
            {}};
  }

 private:
  // The backward pass obeys what is asked for now, not what is asked for then. A graph that is
  // being traced (torch.compile, torch.export) outlives the settings of its trace: it keeps its own
  // arguments only, and asks for settings when it runs.
  static SettledChoices settle(const Variable& input, const Variable& weight,
                               const Geometry& geometry, const std::string& backward_data,
                               const std::string& backward_filter) {
    const bool is_traced = c10::impl::TorchDispatchModeTLS::any_modes_set() ||
                           input.unsafeGetTensorImpl()->is_python_dispatch() ||
                           !(input.is_cpu() || input.is_cuda());
    const auto stride = c10::asIntArrayRefSlowOpt(geometry.stride);
    const auto padding = c10::asIntArrayRefSlowOpt(geometry.padding);
    const auto dilation = c10::asIntArrayRefSlowOpt(geometry.dilation);
    const auto output_padding = c10::asIntArrayRefSlowOpt(geometry.output_padding);
    const auto groups = geometry.groups.maybe_as_int();
    if (is_traced || !stride || !padding || !dilation || !output_padding || !groups) {
      return {backward_data, backward_filter};
    }
    return settle_backward({input, weight, *stride, *padding, *dilation, geometry.transposed,
                            *output_padding, *groups},
                           backward_data, backward_filter);
  }
};

// Without a gradient to compute, the bookkeeping of a Function costs more than a small convolution.
bool has_derivative(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias) {
  const auto has = [grad_mode = at::GradMode::is_enabled()](const at::Tensor& tensor) {
    return (grad_mode && tensor.requires_grad()) || tensor._fw_grad(/*level=*/0).defined();
  };
  return has(input) || has(weight) || (bias && bias->defined() && has(*bias));
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const OptionalTensor& bias, SymInts stride, SymInts padding,
                       SymInts dilation, bool transposed, SymInts output_padding,
                       c10::SymInt groups, std::string_view forward, std::string_view backward_data,
                       std::string_view backward_filter) {
  if (!has_derivative(input, weight, bias)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_convolution(input, weight, bias, stride, padding, dilation, transposed,
                            output_padding, groups, forward, backward_data, backward_filter);
  }
  return ConvolutionFunction::apply(input, weight, bias,
                                    Geometry{stride.vec(), padding.vec(), dilation.vec(),
                                             output_padding.vec(), transposed, std::move(groups)},
                                    std::string(forward), std::string(backward_data),
                                    std::string(backward_filter));
}

Gradients3 convolution_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                const at::Tensor& weight, at::OptionalSymIntArrayRef bias_sizes,
                                SymInts stride, SymInts padding, SymInts dilation, bool transposed,
                                SymInts output_padding, c10::SymInt groups,
                                std::array<bool, 3> mask, std::string_view backward_data,
                                std::string_view backward_filter) {
  const variable_list gradients =
      BackwardFunction::apply(grad_output, input, weight, bias_sizes,
                              Geometry{stride.vec(), padding.vec(), dilation.vec(),
                                       output_padding.vec(), transposed, std::move(groups)},
                              mask, std::string(backward_data), std::string(backward_filter));
  return {gradients[0], gradients[1], gradients[2]};
}

TORCH_LIBRARY_IMPL(torchalgo, Autograd, m) {
  m.impl("convolution", convolution);
  m.impl("convolution_backward", convolution_backward);
}

}  // namespace
}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/conv_transpose1d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/conv_transpose3d.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <string_view>

#include "aten_algo/strided.h"
#include "ops/conv_call.h"
#include "ops/conv_ops.h"
#include "ops/convolution.h"

// The public convolutions. conv1d ... conv_transpose3d are torch.nn.functional's, each one call of
// torchalgo::convolution, which has the kernels. `forward`, `backward_data` and `backward_filter`
// name the primitives for the output, the gradient of the input and the gradient of the weight. The
// output of a transposed convolution needs a backward_data primitive. Below: kernels of CPU and
// CUDA, and the schemas. conv_meta.cpp, conv_autograd.cpp and conv_autocast.cpp have the rest.
namespace torchalgo {
namespace {

// Gives a result exactly the strides that the Meta kernel promises. The strides that ATen chose may
// differ if a size is 1, or for rare types.
at::Tensor in_format(const at::Tensor& tensor, at::MemoryFormat format) {
  return to_strided(tensor, format == at::MemoryFormat::Contiguous ? Layout::kNchw : Layout::kNhwc);
}

// Results share no memory with anything, and a schema's Tensor is never undefined.
at::Tensor in_format_or_empty(const at::Tensor& tensor, at::MemoryFormat format,
                              const at::Tensor& like) {
  return tensor.defined() ? in_format(tensor, format) : at::empty({0}, like.options());
}

at::Tensor convolution(const ConvArgs& args, const OptionalTensor& bias,
                       const ChoiceTexts& choices) {
  check_bias_type(args.input, bias, args.transposed);
  const c10::DeviceGuard on_device(args.input.device());
  return in_format(run_forward(args, bias, choices.forward),
                   conv_memory_format(args.input, args.weight));
}

Gradients convolution_backward(const at::Tensor& grad_output, const ConvArgs& args,
                               at::OptionalIntArrayRef bias_sizes, std::array<bool, 3> mask,
                               const ChoiceTexts& choices) {
  const c10::DeviceGuard on_device(args.input.device());
  const auto [grad_input, grad_weight, grad_bias] = run_backward(
      grad_output, args, bias_sizes, mask, choices.backward_data, choices.backward_filter);
  const at::MemoryFormat format = conv_memory_format(args.input, args.weight);
  return {in_format_or_empty(grad_input, format, args.input),
          in_format_or_empty(grad_weight, format, args.weight),
          in_format_or_empty(grad_bias, at::MemoryFormat::Contiguous, grad_output)};
}

using SymInts = c10::SymIntArrayRef;

// No primitive computes with complex numbers. Torch's op turns them into real convolutions.
template <int kDims>
at::Tensor convolve_complex(const SymConvArgs& args, const OptionalTensor& bias) {
  if (args.transposed) {
    constexpr auto kOp = kDims == 1   ? at::conv_transpose1d_symint
                         : kDims == 2 ? at::conv_transpose2d_symint
                                      : at::conv_transpose3d_symint;
    return kOp(args.input, args.weight, bias, args.stride, args.padding, args.output_padding,
               args.groups, args.dilation);
  }
  using Conv = at::Tensor (*)(const at::Tensor&, const at::Tensor&, const OptionalTensor&, SymInts,
                              SymInts, SymInts, c10::SymInt);
  constexpr Conv kOp = kDims == 1   ? Conv(at::conv1d_symint)
                       : kDims == 2 ? Conv(at::conv2d_symint)
                                    : Conv(at::conv3d_symint);
  return kOp(args.input, args.weight, bias, args.stride, args.padding, args.dilation, args.groups);
}

template <int kDims>
at::Tensor convolve(const SymConvArgs& args, const OptionalTensor& bias,
                    const ChoiceTexts& choices) {
  // An input without a batch dimension is treated as a batch of one, as torch does.
  const at::Tensor& input = args.input;
  TORCH_CHECK(input.dim() == kDims + 2 || input.dim() == kDims + 1, "torchalgo::conv",
              args.transposed ? "_transpose" : "", kDims, "d: expected an input of rank ",
              kDims + 1, " or ", kDims + 2, ", got sizes ", input.sym_sizes());
  if (input.is_complex() || args.weight.is_complex()) return convolve_complex<kDims>(args, bias);
  if (input.dim() == kDims + 2) return call_convolution(args, bias, choices);
  return call_convolution(args.of(input.unsqueeze(0), args.weight), bias, choices).squeeze(0);
}

template <int kDims>
at::Tensor conv(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                SymInts stride, SymInts padding, SymInts dilation, c10::SymInt groups,
                std::string_view forward, std::string_view backward_data,
                std::string_view backward_filter) {
  const std::vector<c10::SymInt> none(kDims, 0);
  return convolve<kDims>({input, weight, stride, padding, dilation, false, none, std::move(groups)},
                         bias, {forward, backward_data, backward_filter});
}

template <int kDims>
at::Tensor conv_transpose(const at::Tensor& input, const at::Tensor& weight,
                          const OptionalTensor& bias, SymInts stride, SymInts padding,
                          SymInts output_padding, c10::SymInt groups, SymInts dilation,
                          std::string_view forward, std::string_view backward_data,
                          std::string_view backward_filter) {
  return convolve<kDims>(
      {input, weight, stride, padding, dilation, true, output_padding, std::move(groups)}, bias,
      {forward, backward_data, backward_filter});
}

// The defaults are on disk: TorchScript drops arguments that equal them. Never change one.
constexpr const char* kChoices =
    "*, str forward=\"auto\", str backward_data=\"auto\", str backward_filter=\"auto\") -> Tensor";

template <int kDims>
void define_convs(torch::Library& m) {
  const std::string d = std::to_string(kDims);
  const std::string tensors = "(Tensor input, Tensor weight, Tensor? bias=None, ";
  const auto list = [&d](const char* name, const char* value) {
    return "SymInt[" + d + "] " + name + "=" + value + ", ";
  };
  const std::string conv_name = "conv" + d + "d";
  m.def((conv_name + tensors + list("stride", "1") + list("padding", "0") + list("dilation", "1") +
         "SymInt groups=1, " + kChoices)
            .c_str(),
        {at::Tag::pt2_compliant_tag});
  m.impl(conv_name.c_str(), conv<kDims>);
  const std::string transpose_name = "conv_transpose" + d + "d";
  m.def((transpose_name + tensors + list("stride", "1") + list("padding", "0") +
         list("output_padding", "0") + "SymInt groups=1, " + list("dilation", "1") + kChoices)
            .c_str(),
        {at::Tag::pt2_compliant_tag});
  m.impl(transpose_name.c_str(), conv_transpose<kDims>);
}

TORCH_LIBRARY_FRAGMENT(torchalgo, m) {
  m.def(
      "convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, "
      "SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, *, "
      "str forward, str backward_data, str backward_filter) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, "
      "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, "
      "SymInt[] output_padding, SymInt groups, bool[3] output_mask, *, str backward_data, "
      "str backward_filter) -> (Tensor, Tensor, Tensor)",
      {at::Tag::pt2_compliant_tag});
  define_convs<1>(m);
  define_convs<2>(m);
  define_convs<3>(m);
}

void add_kernels(torch::Library& m) {
  m.impl("convolution", ConvKernels<ConvArgs>::forward<&convolution>);
  m.impl("convolution_backward", ConvKernels<ConvArgs>::backward<&convolution_backward>);
}

TORCH_LIBRARY_IMPL(torchalgo, CPU, m) { add_kernels(m); }
TORCH_LIBRARY_IMPL(torchalgo, CUDA, m) { add_kernels(m); }

}  // namespace
}  // namespace torchalgo

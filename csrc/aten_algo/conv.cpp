// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include <optional>

#include "aten_algo/strided.h"
#include "provider/kernel.h"
#include "provider/memory.h"
#include "provider/packing.h"
#include "provider/uneven_padding.h"

namespace torchalgo::aten {
namespace {

// The arguments of at::convolution: pairs, or triples if 3-D.
struct Geometry {
  at::DimVector stride, pad, dilation, output_pad;
};

// Returns the rows or columns by which the result of a transposed convolution exceeds the least
// possible size. at::convolution calls them output padding.
std::int64_t output_pad(std::int64_t size, std::int64_t filter, std::int64_t stride,
                        std::int64_t pad, std::int64_t dilation) {
  return (size + 2 * pad - dilation * (filter - 1) - 1) % stride;
}

Geometry geometry_of(const ConvProblem& conv) {
  Geometry geometry = {{conv.stride_h, conv.stride_w},
                       even_padding(conv),
                       {conv.dilation_h, conv.dilation_w},
                       {0, 0}};
  if (conv.is_3d) {
    geometry = {{conv.stride_d, conv.stride_h, conv.stride_w},
                {conv.pad_d, conv.pad_h, conv.pad_w},
                {conv.dilation_d, conv.dilation_h, conv.dilation_w},
                {0, 0, 0}};
  }
  if (conv.direction == Direction::kBackwardData) {
    auto& pads = geometry.output_pad;
    const std::size_t last = pads.size() - 1;
    pads[last] = output_pad(conv.w, conv.s, conv.stride_w, conv.pad_w, conv.dilation_w);
    pads[last - 1] = output_pad(conv.h, conv.r, conv.stride_h, conv.pad_h, conv.dilation_h);
    if (conv.is_3d) {
      pads[0] = output_pad(conv.d, conv.t, conv.stride_d, conv.pad_d, conv.dilation_d);
    }
  }
  return geometry;
}

// In nhwc.bf16, only gradients are offered: oneDNN's forward convolution in bf16 is aten.prepacked.
Offer offer_conv(const Problem& problem, const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "runs convolutions only"};
  if (!conv->epilogue.empty() && conv->epilogue != Epilogue{PostOp::kBias}) {
    return {{}, "ATen convolution fuses only the bias"};
  }
  const bool is_gradient = conv->direction != Direction::kForward && !conv->is_3d;
  Offer offer =
      is_gradient ? offer_with_bf16("aten.conv", problem, device) : offer_strided("aten.conv");
  if (conv->direction == Direction::kBackwardFilter) {
    // With channels_last inputs, ATen's gradient of the weights is channels_last too.
    offer.primitives.push_back({"aten.conv.krsc", Layout::kNhwc, Layout::kNhwc, 0});
  }
  return offer;
}

at::Tensor diff_weights(const ConvProblem& conv, const Primitive& primitive,
                        const Geometry& geometry, const KernelArgs& args) {
  const at::Tensor src = to_strided(args.src[0], primitive.src);
  const at::Tensor diff_dst = to_strided(args.src[1], primitive.dst);
  // at::convolution_backward reads only the sizes and the memory format of this tensor.
  const at::Tensor weights =
      empty_tensor(weight_sizes(conv), conv.dtype, primitive.src, src.device());
  const at::Tensor result = std::get<1>(
      at::convolution_backward(diff_dst, src, weights, /*bias_sizes=*/std::nullopt, geometry.stride,
                               geometry.pad, geometry.dilation, /*transposed=*/false,
                               geometry.output_pad, conv.groups, {false, true, false}));
  // Weights keep the type of the problem.
  return to_strided(result.to(scalar_type(conv.dtype)), weights_layout(primitive));
}

// The call of at::convolution for a forward or backward-data convolution.
struct ConvolutionCall {
  ConvProblem conv;
  Geometry geometry;
  Layout src = Layout::kNchw, dst = Layout::kNchw;  // of its input and its result
};

at::Tensor run_conv(const ConvolutionCall& call, const KernelArgs& args) {
  const Geometry& geometry = call.geometry;
  std::optional<at::Tensor> bias;
  if (!call.conv.epilogue.empty()) bias = args.packed[0].bias;
  const at::Tensor src = to_strided(with_uneven_padding(call.conv, args.src[0]), call.src);
  const bool is_transposed = call.conv.direction == Direction::kBackwardData;
  const at::Tensor dst =
      at::convolution(src, args.packed[0].weights, bias, geometry.stride, geometry.pad,
                      geometry.dilation, is_transposed, geometry.output_pad, call.conv.groups);
  return to_strided(dst, call.dst);
}

Kernel prepare_conv(const Problem& problem, const Primitive& primitive, const Device&) {
  const auto& conv = std::get<ConvProblem>(problem);
  Kernel kernel = {.problem = problem,
                   .primitive = primitive,
                   .least_work = [=] { return direct_work(problem); },
                   .packing = to_string(primitive),
                   .makes_dst = true};
  if (conv.direction == Direction::kBackwardFilter) {
    kernel.run = [conv, primitive, geometry = geometry_of(conv)](const KernelArgs& args) {
      return diff_weights(conv, primitive, geometry, args);
    };
    return kernel;
  }
  const ConvolutionCall call = {conv, geometry_of(conv), input_layout(problem, primitive),
                                result_layout(problem, primitive)};
  kernel.run = [call](const KernelArgs& args) { return run_conv(call, args); };
  // With channels_last inputs, ATen needs channels_last weights and converts others in every call.
  kernel.pack = [layout = primitive.src,
                 type = scalar_type(element_type(primitive.src, conv.dtype))](
                    const Weights& weights) -> Packed {
    const at::Tensor& bias = weights[0].bias;
    return {
        {to_strided(weights[0].weights.to(type), layout), bias.defined() ? bias.to(type) : bias}};
  };
  if (!is_typed(primitive.src))
    kernel.packed_bytes = [=] { return strided_copy_bytes(problem, primitive.src); };
  return kernel;
}

}  // namespace

Algorithm conv() {
  return {.name = "aten.conv",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_conv,
          .prepare = prepare_conv,
          .is_fallback = true};
}

}  // namespace torchalgo::aten

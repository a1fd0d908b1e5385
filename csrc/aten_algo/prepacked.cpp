// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "aten_algo/strided.h"
#include "provider/epilogue.h"
#include "provider/kernel.h"

// Runs oneDNN's fused convolution as PyTorch's Inductor does. The ops mkldnn::* are not public API.
// So they are looked up by name and called boxed: if a signature changes, or torch was built
// without oneDNN, the algorithm refuses and does not crash.
namespace torchalgo::aten {
namespace {

using c10::IValue;

std::optional<c10::OperatorHandle> find_op(const char* name, const char* overload,
                                           std::size_t arguments) {
  auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  if (op && op->schema().arguments().size() != arguments) op.reset();
  return op;
}

struct FusedOps {
  std::optional<c10::OperatorHandle> reorder =
      find_op("mkldnn::_reorder_convolution_weight", "", 6);
  std::optional<c10::OperatorHandle> unary = find_op("mkldnn::_convolution_pointwise", "", 10);
  std::optional<c10::OperatorHandle> binary =
      find_op("mkldnn::_convolution_pointwise", "binary", 13);
};

const FusedOps& fused_ops() {
  static const FusedOps ops;
  return ops;
}

/// Returns oneDNN's name for `activation`, or "none" if ATen has to apply it after the call: oneDNN
/// turns a NaN into a number in its relu, hardtanh and hardsigmoid.
const char* fused_activation(const std::optional<PostOp>& activation) {
  if (!activation) return "none";
  switch (activation->kind) {
    case PostOp::kHardswish:
      return "hardswish";
    case PostOp::kSilu:
      return "swish";
    case PostOp::kSigmoid:
      return "sigmoid";
    default:
      return "none";
  }
}

Offer offer_prepacked(const Problem& problem, const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "runs convolutions only"};
  if (conv->direction != Direction::kForward) return {{}, "forward only"};
  if (conv->is_3d) return {{}, "2-D only"};
  if (conv->dtype != DType::kF32) return {{}, "needs f32"};
  if (!is_padded_evenly(*conv)) return {{}, "needs as many zeros before the image as after it"};
  const FusedOps& ops = fused_ops();
  if (!ops.reorder || !ops.unary || !ops.binary) {
    return {{}, "this torch lacks mkldnn::_convolution_pointwise as torch 2.11 has it"};
  }
  const auto form = as_bias_add_activation(conv->epilogue);
  if (!form) return {{}, "fuses bias, add and activation in this order only"};
  if (form->add && form->activation && *form->activation != PostOp::kRelu) {
    return {{}, "after an add it fuses relu only"};
  }
  const auto dst = conv_dst_sizes(*conv);
  if (form->add && (dst[1] == 1 || dst[2] * dst[3] == 1)) {
    // In this case torch 2.11 and oneDNN disagree about the format: "could not create a memory".
    return {{}, "adds no residual of one channel or one pixel"};
  }
  if (conv->c == 1 && dst[3] == 1 && conv->stride_w > 1) {
    // In this case oneDNN of torch 2.11 reads beyond the end of the image. torch's own conv2d of a
    // channels_last tensor does the same.
    return {{}, "reads no image of one channel with a stride to one column"};
  }
  Offer offer = {{{"aten.prepacked", Layout::kNhwc, Layout::kNhwc, 0}}, {}};
  if (!device.bf16_isa.empty())
    offer.primitives.push_back({"aten.prepacked", Layout::kNhwcBf16, Layout::kNhwcBf16, 0});
  return offer;
}

IValue pair(std::int64_t first, std::int64_t second) {
  return c10::List<std::int64_t>({first, second});
}

IValue optional_tensor(const at::Tensor& tensor) {
  return tensor.defined() ? IValue(tensor) : IValue();
}

at::Tensor call_op(const c10::OperatorHandle& op, torch::jit::Stack stack) {
  op.callBoxed(stack);
  return std::move(stack.back()).toTensor();
}

// The arguments of oneDNN's op that do not change between runs.
struct FusedCall {
  BiasAddActivation form;
  std::string_view activation;  // oneDNN's name; "none": ATen applies it, if there is one
  IValue pad, stride, dilation;
  std::int64_t groups = 1;
};

FusedCall fused_call(const ConvProblem& conv) {
  const auto form = *as_bias_add_activation(conv.epilogue);
  return {form,
          fused_activation(form.activation),
          pair(conv.pad_h, conv.pad_w),
          pair(conv.stride_h, conv.stride_w),
          pair(conv.dilation_h, conv.dilation_w),
          conv.groups};
}

// Packs the weights with oneDNN, which chooses their order for one input size. Results for other
// sizes are right too; at worst the call reorders the weights.
Packed pack_prepacked(const FusedCall& call, const ConvProblem& conv, at::ScalarType type,
                      const Weights& weights) {
  at::Tensor packed =
      call_op(*fused_ops().reorder,
              {weights[0].weights.to(type), call.pad, call.stride, call.dilation, call.groups,
               c10::List<std::int64_t>({conv.n, conv.c, conv.h, conv.w})});
  // With a residual, oneDNN's op wants a bias of the input's type.
  const at::Tensor& bias = weights[0].bias;
  return {{std::move(packed), bias.defined() && call.form.add ? bias.to(type) : bias}};
}

at::Tensor run_prepacked(const FusedCall& call, const KernelArgs& args) {
  torch::jit::Stack stack;
  stack.reserve(13);
  stack.emplace_back(to_strided(args.src[0], Layout::kNhwc));
  if (call.form.add) stack.emplace_back(to_strided(args.residual, Layout::kNhwc));
  stack.emplace_back(args.packed[0].weights);
  stack.push_back(call.form.bias ? optional_tensor(args.packed[0].bias) : IValue());
  stack.push_back(call.pad);
  stack.push_back(call.stride);
  stack.push_back(call.dilation);
  stack.emplace_back(call.groups);
  if (call.form.add) {
    stack.emplace_back("add");
    stack.emplace_back();  // alpha
    stack.emplace_back();  // activation: `offer` lets only relu follow an add
  } else {
    stack.emplace_back(std::string(call.activation));
  }
  stack.emplace_back(c10::List<std::optional<at::Scalar>>());  // the activation's parameters
  stack.emplace_back(std::string());                           // algorithm: gelu's only
  const FusedOps& ops = fused_ops();
  at::Tensor dst = to_strided(call_op(call.form.add ? *ops.binary : *ops.unary, std::move(stack)),
                              Layout::kNhwc);
  if (call.form.activation && call.activation == "none") {
    apply_activation(dst, *call.form.activation);
  }
  return dst;
}

Kernel prepare_prepacked(const Problem& problem, const Primitive& primitive, const Device&) {
  const auto& conv = std::get<ConvProblem>(problem);
  const FusedCall call = fused_call(conv);
  const at::ScalarType type = scalar_type(element_type(primitive.src, conv.dtype));
  return {.problem = problem,
          .primitive = primitive,
          .run = [call](const KernelArgs& args) { return run_prepacked(call, args); },
          .pack = [=](const Weights& weights) { return pack_prepacked(call, conv, type, weights); },
          .least_work = [problem] { return direct_work(problem); },
          .packing = to_string(primitive),
          .makes_dst = true};
}

}  // namespace

Algorithm prepacked() {
  return {.name = "aten.prepacked",
          .version = 2,
          .offer = offer_prepacked,
          .prepare = prepare_prepacked};
}

}  // namespace torchalgo::aten

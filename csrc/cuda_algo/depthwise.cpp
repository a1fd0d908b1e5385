// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/Tensor.h>

#include "cuda_algo/kernels.h"

namespace torchalgo::cuda_algo {
namespace {

std::string refuse_depthwise(const Problem& problem) {
  const auto* const conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr || conv->direction != Direction::kForward || conv->is_3d ||
      conv->groups != conv->c || conv->k != conv->c) {
    return "runs 2-D depthwise forward convolutions only";
  }
  const auto form = as_bias_add_activation(conv->epilogue);
  if (!form) return "takes bias, then add, then an activation as its epilogue";
  if (form->activation && form->activation->kind > PostOp::kSilu) {
    return "has no activation but ReLU, ReLU6, clamp, Hardswish and SiLU";
  }
  return {};
}

Kernel prepare_depthwise(const Problem& problem, const Primitive& primitive,
                         const CudaLibrary& library) {
  const auto& conv = std::get<ConvProblem>(problem);
  auto args = with_window<cuda::Depthwise>(conv);
  args.activation = activation_of(as_bias_add_activation(conv.epilogue)->activation);
  Kernel kernel = kernel_of(
      problem, primitive, [args, run = library.depthwise](const KernelArgs& tensors, void* stream) {
        const auto& [weights, bias] = tensors.packed[0];
        return run(&args, data_of(tensors.src[0]), data_of(weights), data_of(bias),
                   data_of(tensors.residual), tensors.dst.mutable_data_ptr(), stream);
      });
  kernel.packing = "cuda.depthwise";
  kernel.pack = [](const Weights& weights) -> Packed {
    const auto& [kcrs, bias] = weights[0];
    const at::Tensor packed = kcrs.squeeze(1).permute({1, 2, 0}).contiguous();
    return {{packed, bias.defined() ? bias.contiguous() : bias}};
  };
  kernel.packed_bytes = [problem] { return plain_weight_bytes(problem); };
  return kernel;
}

}  // namespace

KernelFamily depthwise() {
  return {"cuda.depthwise", refuse_depthwise, [](const Problem&) { return kNhwcOnly; },
          prepare_depthwise};
}

}  // namespace torchalgo::cuda_algo

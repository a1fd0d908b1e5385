// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "cuda_algo/kernels.h"

namespace torchalgo::cuda_algo {
namespace {

std::string refuse_pointwise(const Problem& problem) {
  if (!std::holds_alternative<EltwiseProblem>(problem) &&
      !std::holds_alternative<ScaleShiftProblem>(problem)) {
    return "runs element-wise operations and scale-shifts only";
  }
  const auto form = as_bias_add_activation(epilogue_of(problem));
  const bool has_activation_only = form && !form->bias && !form->add;
  return has_activation_only ? "" : "takes one activation as its epilogue";
}

bool reads_channels(const Problem& problem) {
  const auto* const eltwise = std::get_if<EltwiseProblem>(&problem);
  return eltwise == nullptr || eltwise->channelwise;
}

std::vector<LayoutPair> pointwise_layouts(const Problem& problem) {
  return reads_channels(problem) ? kNhwcOnly : kBothLayouts;
}

cuda::Pointwise::Kind pointwise_kind(const Problem& problem) {
  const auto* const eltwise = std::get_if<EltwiseProblem>(&problem);
  if (eltwise == nullptr) return cuda::Pointwise::kAffine;
  switch (eltwise->kind) {
    case EltwiseKind::kAdd:
      return cuda::Pointwise::kAdd;
    case EltwiseKind::kMul:
      return cuda::Pointwise::kMul;
    case EltwiseKind::kSub:
      return cuda::Pointwise::kSub;
    case EltwiseKind::kActivation:
      break;
  }
  return cuda::Pointwise::kActivation;
}

Kernel prepare_pointwise(const Problem& problem, const Primitive& primitive,
                         const CudaLibrary& library) {
  const auto sizes = result_sizes(problem);
  const cuda::Pointwise args = {
      .kind = pointwise_kind(problem),
      .type = *element_type_of(dtype_of(problem)),
      .n = static_cast<int>(sizes[0]),
      .pixels = static_cast<int>(sizes[2] * sizes[3]),
      .c = static_cast<int>(sizes[1]),
      .channelwise = std::holds_alternative<EltwiseProblem>(problem) && reads_channels(problem),
      .activation = activation_of(as_bias_add_activation(epilogue_of(problem))->activation),
  };
  Kernel kernel = kernel_of(
      problem, primitive, [args, run = library.pointwise](const KernelArgs& tensors, void* stream) {
        LayerWeights own;
        if (!tensors.packed.empty()) own = tensors.packed[0];
        const at::Tensor& second = tensors.src.size() > 1 ? tensors.src[1] : own.weights;
        return run(&args, data_of(tensors.src[0]), data_of(second), data_of(own.bias),
                   tensors.dst.mutable_data_ptr(), stream);
      });
  return weight_sizes(problem).empty() ? kernel : with_scale_and_shift(std::move(kernel));
}

}  // namespace

KernelFamily pointwise() {
  return {"cuda.pointwise", refuse_pointwise, pointwise_layouts, prepare_pointwise};
}

}  // namespace torchalgo::cuda_algo

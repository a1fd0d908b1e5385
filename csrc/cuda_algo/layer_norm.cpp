// SPDX-License-Identifier: BSD-3-Clause
#include "cuda_algo/kernels.h"

namespace torchalgo::cuda_algo {
namespace {

std::string refuse_layer_norm(const Problem& problem) {
  return std::holds_alternative<LayerNormProblem>(problem) ? "" : "runs norms over channels only";
}

cuda::LayerNorm::Kind norm_kind(LayerNormKind kind) {
  switch (kind) {
    case LayerNormKind::kRms:
      return cuda::LayerNorm::kRms;
    case LayerNormKind::kVariance:
      return cuda::LayerNorm::kVariance;
    case LayerNormKind::kLayer:
      break;
  }
  return cuda::LayerNorm::kLayer;
}

Kernel prepare_layer_norm(const Problem& problem, const Primitive& primitive,
                          const CudaLibrary& library) {
  const auto& norm = std::get<LayerNormProblem>(problem);
  const cuda::LayerNorm args = {.kind = norm_kind(norm.kind),
                                .type = *element_type_of(norm.dtype),
                                .pixels = static_cast<int>(norm.n * norm.h * norm.w),
                                .c = static_cast<int>(norm.c),
                                .epsilon = static_cast<float>(norm.epsilon)};
  return with_scale_and_shift(
      kernel_of(problem, primitive,
                [args, run = library.layer_norm](const KernelArgs& tensors, void* stream) {
                  const auto& [scale, shift] = tensors.packed[0];
                  return run(&args, data_of(tensors.src[0]), data_of(scale), data_of(shift),
                             tensors.dst.mutable_data_ptr(), stream);
                }));
}

}  // namespace

KernelFamily layer_norm() {
  return {"cuda.layer_norm", refuse_layer_norm, [](const Problem&) { return kNhwcOnly; },
          prepare_layer_norm};
}

}  // namespace torchalgo::cuda_algo

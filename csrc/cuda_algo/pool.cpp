// SPDX-License-Identifier: BSD-3-Clause
#include "cuda_algo/kernels.h"

namespace torchalgo::cuda_algo {
namespace {

std::string refuse_pool(const Problem& problem) {
  return std::holds_alternative<PoolProblem>(problem) ? "" : "runs poolings only";
}

cuda::Pool::Kind pool_kind(const PoolProblem& pool) {
  switch (pool.kind) {
    case PoolKind::kMax:
      return cuda::Pool::kMax;
    case PoolKind::kAdaptiveAverage:
      return cuda::Pool::kAdaptive;
    case PoolKind::kAverage:
      break;
  }
  return pool.count_include_pad ? cuda::Pool::kAveragePadded : cuda::Pool::kAverage;
}

Kernel prepare_pool(const Problem& problem, const Primitive& primitive,
                    const CudaLibrary& library) {
  const auto& pool = std::get<PoolProblem>(problem);
  auto args = with_window<cuda::Pool>(pool);
  args.kind = pool_kind(pool);
  return kernel_of(
      problem, primitive, [args, run = library.pool](const KernelArgs& tensors, void* stream) {
        return run(&args, tensors.src[0].const_data_ptr(), tensors.dst.mutable_data_ptr(), stream);
      });
}

}  // namespace

KernelFamily pool() {
  return {"cuda.pool", refuse_pool, [](const Problem&) { return kNhwcOnly; }, prepare_pool};
}

}  // namespace torchalgo::cuda_algo

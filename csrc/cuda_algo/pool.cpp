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
  const auto number = [](std::int64_t size) { return static_cast<int>(size); };
  const auto sizes = result_sizes(problem);
  const cuda::Pool args = {
      .kind = pool_kind(pool),
      .type = *cuda_element_type(pool.dtype),
      .n = number(pool.n),
      .h = number(pool.h),
      .w = number(pool.w),
      .c = number(pool.c),
      .p = number(sizes[2]),
      .q = number(sizes[3]),
      .r = number(pool.r),
      .s = number(pool.s),
      .stride_h = number(pool.stride_h),
      .stride_w = number(pool.stride_w),
      .pad_h = number(pool.pad_h),
      .pad_w = number(pool.pad_w),
      .dilation_h = number(pool.dilation_h),
      .dilation_w = number(pool.dilation_w),
  };
  return cuda_kernel(
      problem, primitive, [args, run = library.pool](const KernelArgs& tensors, void* stream) {
        return run(&args, tensors.src[0].const_data_ptr(), tensors.dst.mutable_data_ptr(), stream);
      });
}

}  // namespace

KernelFamily pool() {
  return {"cuda.pool", refuse_pool, [](const Problem&) { return kNhwcOnly; }, prepare_pool};
}

}  // namespace torchalgo::cuda_algo

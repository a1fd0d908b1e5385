// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/max_pool2d.h>

#include <optional>

#include "aten_algo/strided.h"
#include "provider/kernel.h"

namespace torchalgo::aten {
namespace {

Offer offer_pool(const Problem& problem, const Device& device) {
  const auto* pool = std::get_if<PoolProblem>(&problem);
  if (pool == nullptr) return {{}, "runs poolings only"};
  if (pool->kind != PoolKind::kAdaptiveAverage &&
      (2 * pool->pad_h > pool->r || 2 * pool->pad_w > pool->s)) {
    return {{}, "ATen pads by half a window at most"};
  }
  return offer_with_bf16("aten.pool", problem, device);
}

at::Tensor run_pool(const PoolProblem& pool, const Primitive& primitive, const KernelArgs& args) {
  const at::Tensor src = to_strided(args.src[0], primitive.src);
  at::Tensor dst;
  switch (pool.kind) {
    case PoolKind::kMax:
      dst = at::max_pool2d(src, {pool.r, pool.s}, {pool.stride_h, pool.stride_w},
                           {pool.pad_h, pool.pad_w}, {pool.dilation_h, pool.dilation_w},
                           pool.ceil_mode);
      break;
    case PoolKind::kAverage:
      dst = at::avg_pool2d(src, {pool.r, pool.s}, {pool.stride_h, pool.stride_w},
                           {pool.pad_h, pool.pad_w}, pool.ceil_mode, pool.count_include_pad,
                           std::nullopt);
      break;
    case PoolKind::kAdaptiveAverage:
      dst = at::adaptive_avg_pool2d(src, {pool.p, pool.q});
      break;
  }
  return to_strided(dst, primitive.dst);
}

Kernel prepare_pool(const Problem& problem, const Primitive& primitive, const Device&) {
  return {.problem = problem,
          .primitive = primitive,
          .run = [pool = std::get<PoolProblem>(problem),
                  primitive](const KernelArgs& args) { return run_pool(pool, primitive, args); },
          .makes_dst = true};
}

}  // namespace

Algorithm pool() {
  return {.name = "aten.pool",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_pool,
          .prepare = prepare_pool,
          .is_fallback = true};
}

}  // namespace torchalgo::aten

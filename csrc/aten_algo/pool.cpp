// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/max_pool2d.h>

#include <array>
#include <optional>

#include "aten_algo/strided.h"

namespace torchalgo::aten {
namespace {

Offer offer_pool(const Problem& problem, const Device& device) {
  if (!std::holds_alternative<PoolProblem>(problem)) return {{}, "runs poolings only"};
  return offer_with_bf16("aten.pool", problem, device);
}

at::Tensor run_pool(const PoolProblem& pool, const Primitive& primitive, const KernelArgs& args) {
  const at::Tensor src = to_strided(args.src[0], primitive.src);
  if (pool.kind == PoolKind::kAdaptiveAverage)
    return at::adaptive_avg_pool2d(src, {pool.p, pool.q});
  const std::array<std::int64_t, 2> window = {pool.r, pool.s}, pad = {pool.pad_h, pool.pad_w};
  const std::array<std::int64_t, 2> stride = {pool.stride_h, pool.stride_w};
  if (pool.kind == PoolKind::kMax)
    return at::max_pool2d(src, window, stride, pad, {pool.dilation_h, pool.dilation_w},
                          pool.ceil_mode);
  return at::avg_pool2d(src, window, stride, pad, pool.ceil_mode, pool.count_include_pad,
                        /*divisor_override=*/std::nullopt);
}

}  // namespace

Algorithm pool() { return strided_algorithm<PoolProblem>("aten.pool", offer_pool, run_pool); }

}  // namespace torchalgo::aten

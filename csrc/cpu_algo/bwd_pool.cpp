// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/pool_gradient.h"

#include <algorithm>
#include <functional>

#include "cpu_algo/pool.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

using RunPoolGradient = decltype(&kernels::default_isa::run_pool_gradient);

constexpr std::int64_t kLaneChunk = 64;  // whole cache lines

Offer offer_pool_gradient(const Problem& problem, const Device&) {
  const auto* gradient = std::get_if<PoolGradientProblem>(&problem);
  if (gradient == nullptr) return {{}, "needs the gradient of a pooling"};
  return offer_f32("cpu.bwd_pool", gradient->pool.dtype,
                   {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
}

PlainKernel bind_pool_gradient(RunPoolGradient run, const Problem& problem,
                               const Primitive& primitive, const Device&) {
  const auto& pool = std::get<PoolGradientProblem>(problem).pool;
  const LaneShape shape = lane_shape(primitive.src, pool.n, pool.c);
  kernels::PoolGradient sizes = {pool_sizes(pool, shape.lanes), nullptr};
  sizes.pool.lane_chunk = std::min(shape.lanes, kLaneChunk);
  const std::int64_t chunks = (shape.lanes + sizes.pool.lane_chunk - 1) / sizes.pool.lane_chunk;
  const std::int64_t tasks = shape.groups * chunks;
  const std::int64_t grain = grain_of(4 * pool.h * pool.w * sizes.pool.lane_chunk);
  return {.run = [=](const RunArgs& args, const Threads& threads) {
    kernels::PoolGradient call = sizes;
    call.diff = args.src[0];
    if (args.src.size() > 1) call.pool.src = args.src[1];
    call.pool.dst = args.dst;
    parallel_for(threads, tasks, grain, run, call);
  }};
}

}  // namespace

Algorithm bwd_pool(const std::string& isa) {
  return {
      .name = "cpu.bwd_pool",
      .rounding = 1,
      .offer = offer_pool_gradient,
      .bind = std::bind_front(bind_pool_gradient, TORCHALGO_PICK_KERNEL(isa, run_pool_gradient))};
}

}  // namespace torchalgo::cpu

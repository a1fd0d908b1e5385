// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/pool_gradient.h"

#include <algorithm>

#include "cpu_algo/pool.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kLaneChunk = 64;  // whole cache lines

Offer offer_pool_gradient(const Problem& problem, const Device&) {
  const auto* gradient = std::get_if<PoolGradientProblem>(&problem);
  if (gradient == nullptr) return {{}, "needs the gradient of a pooling"};
  return offer_f32("cpu.bwd_pool", gradient->pool.dtype,
                   {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
}

}  // namespace

Algorithm bwd_pool(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = "cpu.bwd_pool";
  algorithm.rounding = 1;
  algorithm.offer = offer_pool_gradient;
  algorithm.bind = [run = TORCHALGO_PICK_KERNEL(isa, run_pool_gradient)](
                       const Problem& problem, const Primitive& primitive,
                       const Device&) -> PlainKernel {
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
      parallel_for(threads, tasks, grain,
                   [&](std::int64_t begin, std::int64_t end) { run(call, begin, end); });
    }};
  };
  return algorithm;
}

}  // namespace torchalgo::cpu

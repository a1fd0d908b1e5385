// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/pool.h"

#include <algorithm>

#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kLaneChunk = 64;  // whole cache lines, and enough independent sums

std::int64_t rows_of(const kernels::Pool& pool, std::int64_t groups) { return groups * pool.h.out; }

// The problem without pointers; few rows are cut into chunks of lanes, so that a global pooling in
// nhwc has work for every thread.
kernels::Pool make_pool(const PoolProblem& problem, const LaneShape& shape, std::int64_t threads) {
  kernels::Pool pool = pool_sizes(problem, shape.lanes);
  const bool has_few_rows = rows_of(pool, shape.groups) < 4 * threads;
  pool.lane_chunk = has_few_rows ? std::min(shape.lanes, kLaneChunk) : shape.lanes;
  return pool;
}

// Floats that one task reads, counting those again that it reads again.
std::int64_t floats_per_task(const kernels::Pool& pool) {
  const auto taps = [](const kernels::PoolAxis& axis) {
    return axis.is_adaptive ? (axis.in + axis.out - 1) / axis.out : std::min(axis.window, axis.in);
  };
  return taps(pool.h) * taps(pool.w) * pool.w.out * pool.lane_chunk;
}

Offer offer_pool(const Problem& problem, const Device&) {
  const auto* pool = std::get_if<PoolProblem>(&problem);
  if (pool == nullptr) return {{}, "needs a pooling"};
  return offer_f32("cpu.pool", pool->dtype,
                   {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c, Layout::kNhwcBf16});
}

}  // namespace

kernels::Pool pool_sizes(const PoolProblem& problem, std::int64_t lanes) {
  const auto sizes = result_sizes(problem);
  const bool is_adaptive = problem.kind == PoolKind::kAdaptiveAverage;
  kernels::Pool pool = {};
  pool.lanes = lanes;
  pool.h = {problem.h,     sizes[2],           problem.r,  problem.stride_h,
            problem.pad_h, problem.dilation_h, is_adaptive};
  pool.w = {problem.w,     sizes[3],           problem.s,  problem.stride_w,
            problem.pad_w, problem.dilation_w, is_adaptive};
  if (problem.kind == PoolKind::kAverage) pool.h.dilation = pool.w.dilation = 1;
  pool.is_max = problem.kind == PoolKind::kMax;
  pool.count_include_pad = problem.count_include_pad;
  return pool;
}

PoolPlan plan_pool(PoolRun run, const PoolProblem& problem, Layout layout, std::int64_t threads) {
  const LaneShape shape = lane_shape(layout, problem.n, problem.c);
  const kernels::Pool pool = make_pool(problem, shape, threads);
  const std::int64_t chunks = (pool.lanes + pool.lane_chunk - 1) / pool.lane_chunk;
  return {run, pool, rows_of(pool, shape.groups) * chunks, grain_of(floats_per_task(pool))};
}

void run_pool(const PoolPlan& plan, const float* src, float* dst, const Threads& threads) {
  kernels::Pool pool = plan.pool;
  pool.src = src;
  pool.dst = dst;
  parallel_for(threads, plan.tasks, plan.grain, plan.run, pool);
}

Algorithm pool(const std::string& isa) {
  const auto run = TORCHALGO_PICK_KERNEL(isa, run_pool);
  const auto run_bf16 = TORCHALGO_PICK_KERNEL(isa, run_pool_bf16);
  const auto bind = [=](const Problem& problem, const Primitive& primitive, const Device& device) {
    const PoolPlan plan = plan_pool(is_typed(primitive.src) ? run_bf16 : run,
                                    std::get<PoolProblem>(problem), primitive.src, device.threads);
    return PlainKernel{.run = [plan](const RunArgs& args, const Threads& threads) {
      run_pool(plan, args.src[0], args.dst, threads);
    }};
  };
  return with_bf16_if_fast(
      {.name = "cpu.pool", .version = 2, .rounding = 1, .offer = offer_pool, .bind = bind});
}

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/pool.h"
#include "ir/layout.h"
#include "ir/problem.h"
#include "ir/threads.h"

namespace torchalgo::cpu {

using PoolRun = decltype(&kernels::default_isa::run_pool);

/// A pooling that is divided among threads.
struct PoolPlan {
  PoolRun run = nullptr;
  kernels::Pool pool;  // without pointers
  std::int64_t tasks = 0, grain = 1;
};
[[nodiscard]] PoolPlan plan_pool(PoolRun run, const PoolProblem& problem, Layout layout,
                                 std::int64_t threads);

/// Pools `src` into `dst`, both in the layout of the plan. Writes nothing to lanes beyond the last
/// block.
void run_pool(const PoolPlan& plan, const float* src, float* dst, const Threads& threads);

/// Returns the sizes of a pooling for its kernels, without pointers and lane_chunk.
[[nodiscard]] kernels::Pool pool_sizes(const PoolProblem& problem, std::int64_t lanes);

}  // namespace torchalgo::cpu

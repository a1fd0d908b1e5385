// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Poolings and fully connected layers on all threads, each alone and as parts of
// cpu.squeeze_excite.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cpu_algo/kernels/linear.h"
#include "cpu_algo/kernels/pool.h"
#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// Inputs up to which a fully connected layer is bound by reading its weights.
///
/// A weight is 4 bytes and 2n operations. A core has some 10 operations per byte that memory gives
/// it, a processor whose cores share the memory up to 50: beyond 16 operations per byte time is
/// soon that of the arithmetic, where a matrix product that blocks for the caches does better.
inline constexpr std::int64_t kMostLinearInputs = 32;

using PoolKernel = decltype(&kernels::default_isa::run_pool);
using LinearKernel = decltype(&kernels::default_isa::run_linear);

/// A pooling that is divided among threads.
struct PoolPlan {
  PoolKernel kernel = nullptr;
  kernels::Pool pool;  // without pointers
  std::int64_t tasks = 0, grain = 1;
};
[[nodiscard]] PoolPlan plan_pool(PoolKernel kernel, const PoolProblem& problem, Layout layout,
                                 std::int64_t threads);

/// Pools `src` into `dst`, both in the layout of the plan. Writes nothing to lanes beyond the last
/// block.
void run_pool(const PoolPlan& plan, const float* src, float* dst);

/// `kernel` takes ranges of `tasks`, each of which reads `rows_per_task` rows of weights.
void run_linear(LinearKernel kernel, const kernels::Linear& linear, std::int64_t tasks,
                std::int64_t rows_per_task);

/// ceil(k / 8): the tasks of kernels::run_linear_panels.
[[nodiscard]] constexpr std::int64_t linear_panel_count(std::int64_t k) {
  return (k + kernels::kLinearPanel - 1) / kernels::kLinearPanel;
}
/// Weights [k, c] as kernels::run_linear_panels reads them: [ceil(k / 8), ceil(c / 16), 8, 16].
[[nodiscard]] at::Tensor linear_panels(const at::Tensor& weights);
[[nodiscard]] std::int64_t linear_panels_bytes(std::int64_t k, std::int64_t c);

}  // namespace torchalgo::cpu

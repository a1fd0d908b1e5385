// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/linear.h"
#include "ir/threads.h"

namespace torchalgo::cpu {

/// The most inputs for which a fully connected layer is limited by reading its weights.
///
/// A weight has 4 bytes and 2n operations. A core can do about 10 operations per byte that it reads
/// from memory. A processor whose cores share the memory can do up to 50. Beyond 16 operations per
/// byte (n = 32), the arithmetic soon takes most of the time. Then a matrix product that blocks for
/// the caches is faster.
inline constexpr std::int64_t kMostLinearInputs = 32;

using LinearRun = decltype(&kernels::default_isa::run_linear);

/// Calls `run` for ranges of `tasks`, each of which reads `rows_per_task` rows of weights.
void run_linear(LinearRun run, const kernels::Linear& linear, std::int64_t tasks,
                std::int64_t rows_per_task, const Threads& threads);

/// Returns ceil(k / 8): the tasks of kernels::run_linear_panels.
[[nodiscard]] constexpr std::int64_t linear_panel_count(std::int64_t k) {
  return (k + kernels::kLinearPanel - 1) / kernels::kLinearPanel;
}
/// Writes weights [k, c] as kernels::run_linear_panels reads them: [ceil(k / 8), ceil(c / 16), 8,
/// 16], with zeros where there is no weight.
void pack_linear_panels(std::int64_t k, std::int64_t c, const float* weights, float* panels);
/// Returns the floats that pack_linear_panels writes.
[[nodiscard]] std::int64_t linear_panel_floats(std::int64_t k, std::int64_t c);

}  // namespace torchalgo::cpu

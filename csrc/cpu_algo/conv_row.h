// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// What the convolution rows share.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "provider/algorithm.h"
#include "standalone/conv.h"

namespace torchalgo::cpu {

/// Allocates a tensor of zeros. It is declared here because ATen/ops/zeros.h takes seconds to
/// compile.
[[nodiscard]] at::Tensor zero_floats(at::IntArrayRef sizes);

/// `bias` followed by zeros up to `count` floats; all zeros if it is undefined.
[[nodiscard]] at::Tensor pad_bias(const at::Tensor& bias, std::int64_t count);

/// Returns `primitive` with another workspace.
[[nodiscard]] Primitive with_workspace(Primitive primitive, std::int64_t bytes);

/// Calls run(begin, end, slice) for parts of [0, tasks) on several threads: `slices` parts at most,
/// each with its own slice number < slices, whatever the number of threads.
template <class Run>
void run_in_slices(std::int64_t tasks, std::int64_t slices, const Run& run) {
  const std::int64_t parts = std::min(tasks, slices);
  at::parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      run(tasks * part / parts, tasks * (part + 1) / parts, part);
    }
  });
}

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"
#include "cpu_algo/kernels/pool.h"

namespace torchalgo::kernels {

/// The gradient of a pooling with respect to its input. Of `pool`, src is the pooling's input,
/// which only a maximum reads, and dst is that input's gradient. Each element of `diff`, the
/// gradient of the result, goes to the first largest element of its window, or to the last NaN if
/// there is one. For an average, all elements of the window get equal parts.
struct PoolGradient {
  Pool pool;
  const float* diff;
};

/// Runs tasks [begin, end) of images * ceil(lanes / lane_chunk), in this order.
TORCHALGO_DECLARE_KERNEL(void run_pool_gradient(const PoolGradient& call, std::int64_t begin,
                                                std::int64_t end))

}  // namespace torchalgo::kernels

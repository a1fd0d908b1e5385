// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The windows along one axis. In the adaptive case, window i covers [floor(i in / out), ceil((i +
/// 1) in / out)), and the fields after `out` are not read.
struct PoolAxis {
  std::int64_t in = 1, out = 1;
  std::int64_t window = 1, stride = 1, pad = 0, dilation = 1;
  bool is_adaptive = false;
};

/// A 2-D pooling of `images` tensors [h.in, w.in, lanes] to [h.out, w.out, lanes]. `lanes` is 16
/// for a block of nChw16c, c for nhwc, and 1 for a plane of nchw.
struct Pool {
  const float* src;
  float* dst;
  std::int64_t lanes;
  std::int64_t lane_chunk;  // lanes of one task; divides the work of few rows among threads
  PoolAxis h, w;
  bool is_max;             // if not, the average as torch defines it
  bool count_include_pad;  // average: the divisor counts padding, but nothing beyond it
};

/// Runs tasks [begin, end) of images * h.out * ceil(lanes / lane_chunk), in this order. A NaN in a
/// window makes its maximum a NaN. An empty window has maximum -inf and average 0. run_pool_bf16
/// casts src and dst to elements of bf16 in nhwc, run_average_of_bf16 only src.
TORCHALGO_DECLARE_KERNEL(void run_pool(const Pool& pool, std::int64_t begin, std::int64_t end);
                         void run_pool_bf16(const Pool& pool, std::int64_t begin, std::int64_t end);
                         void run_average_of_bf16(const Pool& pool, std::int64_t begin,
                                                  std::int64_t end))

}  // namespace torchalgo::kernels

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The columns whose source positions are computed once for all rows.
inline constexpr std::int64_t kResizeColumns = 256;

/// A resize of `images` tensors [h, w, lanes] to [p, q, lanes]. `lanes` is 16 for a block of
/// nChw16c and c for nhwc.
struct Resize {
  const float* src;
  float* dst;
  std::int64_t lanes, h, w, p, q;
  bool is_nearest;     // else bilinear
  bool align_corners;  // bilinear only
};

/// Writes dst's rows [begin, end) of images * p. Indices are torch's. Nearest takes floor(i * (in /
/// out)) in float arithmetic. Bilinear uses the half-pixel rule unless align_corners is true.
/// run_resize_bf16 casts src and dst to elements of bf16.
TORCHALGO_DECLARE_KERNEL(void run_resize(const Resize& resize, std::int64_t begin,
                                         std::int64_t end);
                         void run_resize_bf16(const Resize& resize, std::int64_t begin,
                                              std::int64_t end))

}  // namespace torchalgo::kernels

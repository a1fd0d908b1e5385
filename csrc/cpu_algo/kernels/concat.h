// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// Some channels of a tensor that follow each other.
struct ConcatSource {
  const float* data;  // for run_concat_runs its first float that is copied
  std::int64_t channels;
  // run_concat_runs: floats that lie together in data and in dst, and from one such run of data to
  // the next.
  std::int64_t run, pitch;
  // run_concat_blocks: the first channel, and the blocks of an image of data.
  std::int64_t first, blocks;
};

struct Concat {
  const ConcatSource* sources;
  std::int64_t source_count;
  float* dst;
  std::int64_t row;       // floats of dst that hold one run of each source; run_concat_runs
  std::int64_t channels;  // of all sources; run_concat_blocks
  std::int64_t pixels;    // h * w; run_concat_blocks
};

/// dst is rows of one run of each source: an image for nchw, a pixel for nhwc, an image for nChw16c
/// if all sources but the last fill their blocks. Writes floats [begin, end) of dst.
TORCHALGO_DECLARE_KERNEL(void run_concat_runs(const Concat& concat, std::int64_t begin,
                                              std::int64_t end);
                         /// nChw16c with any channels: dst's blocks [begin, end) of n * ceil(c /
                         /// 16).
                         void run_concat_blocks(const Concat& concat, std::int64_t begin,
                                                std::int64_t end))

}  // namespace torchalgo::kernels

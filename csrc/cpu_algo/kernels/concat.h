// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// A range of adjacent channels of a tensor.
struct ConcatSource {
  const float* data;  // run_concat_runs: the first float to copy
  std::int64_t channels;
  // run_concat_runs: the floats of one contiguous run in data and in dst, and the floats from one
  // run of data to the next.
  std::int64_t run, pitch;
  // run_concat_blocks: the first channel, and the blocks per image of data.
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

/// Writes floats [begin, end) of dst. dst consists of rows, each with one run of each source. A row
/// is an image for nchw, a pixel for nhwc, and an image for nChw16c if all sources but the last
/// fill their blocks.
TORCHALGO_DECLARE_KERNEL(
    void run_concat_runs(const Concat& concat, std::int64_t begin, std::int64_t end);
    /// Does the same for elements of bf16. The structs count these.
    void run_concat_runs_bf16(const Concat& concat, std::int64_t begin, std::int64_t end);
    /// Writes dst's blocks [begin, end) of n * ceil(c / 16), in nChw16c with
    /// any number of channels.
    void run_concat_blocks(const Concat& concat, std::int64_t begin, std::int64_t end))

}  // namespace torchalgo::kernels

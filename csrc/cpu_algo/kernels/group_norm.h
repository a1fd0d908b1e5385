// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The channels of nhwc that one task of measure_groups reads.
inline constexpr std::int64_t kGroupNormStrip = 64;

/// The mean of some numbers, and the sum of the squares of their differences from it.
struct Moments {
  double mean, squares;
};

/// A group norm, dst = activation((src - mean) / sqrt(variance + epsilon) * scale + shift), with
/// the mean and the variance of each group of channels in each image. It is equally exact if the
/// mean is large compared with the differences. Its three steps are the functions below; each needs
/// all results of the step before it.
///
/// src and dst are [images, blocks, pixels, lanes], and a channel is block * lanes + lane:
/// (c, h * w, 1) for nchw, (1, h * w, c) for nhwc and (blocks, h * w, 16) for nChw16c. Channels
/// from `channels` on are zero in src and become zero in dst.
///
/// The moments are those of parts of an image. In nchw the numbers of a group are adjacent, so a
/// column of parts is a group and a part has `part_size` of its numbers. In the other layouts a
/// column is a channel and a part has `part_size` pixels. The last part may be smaller.
struct GroupNorm {
  const float* src;
  const float* scale;  // one per channel
  const float* shift;
  float* dst;
  Moments* moments;  // [images, parts, columns]
  float* factors;    // [images, 3, blocks * lanes]: the mean, the factor and the shift of a channel
  std::int64_t blocks, pixels, lanes, channels, groups;
  std::int64_t parts, part_size;
  double epsilon;
  Activation activation;
};

/// Returns how many columns of parts an image has.
[[nodiscard]] constexpr std::int64_t columns_of(const GroupNorm& call) {
  return call.lanes == 1 ? call.groups : call.channels;
}
/// Returns how many numbers or pixels a column has.
[[nodiscard]] constexpr std::int64_t column_size(const GroupNorm& call) {
  return call.lanes == 1 ? call.channels / call.groups * call.pixels : call.pixels;
}
/// Returns how many tasks measure_groups has per part of an image.
[[nodiscard]] constexpr std::int64_t strips_of(const GroupNorm& call) {
  if (call.lanes == 1) return call.groups;
  if (call.blocks > 1 || call.lanes <= kGroupNormStrip) return call.blocks;
  return (call.lanes + kGroupNormStrip - 1) / kGroupNormStrip;
}

/// Writes the moments of tasks [begin, end) of images * strips * parts. In measure_groups_bf16, src
/// points to elements of bf16.
TORCHALGO_DECLARE_KERNEL(void measure_groups(const GroupNorm& call, std::int64_t begin,
                                             std::int64_t end);
                         void measure_groups_bf16(const GroupNorm& call, std::int64_t begin,
                                                  std::int64_t end))

/// Writes the factors of groups [begin, end) of images * groups.
TORCHALGO_DECLARE_KERNEL(void find_group_factors(const GroupNorm& call, std::int64_t begin,
                                                 std::int64_t end))

/// Writes pixels [begin, end) of images * blocks * pixels of dst.
TORCHALGO_DECLARE_KERNEL(void normalize_groups(const GroupNorm& call, std::int64_t begin,
                                               std::int64_t end))

}  // namespace torchalgo::kernels

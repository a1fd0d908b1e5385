// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/group_norm.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The most pixels of a part in nchw and in other layouts. Partial sums of f32 are exact enough for
/// this many pixels, and there is work for many threads.
inline constexpr std::int64_t kPlanePart = 4096, kPixelPart = 1024;

/// The shape of a tensor and its parts. It is [images, blocks, pixels, lanes], and a channel is
/// block * lanes + lane: (c, h * w, 1) for nchw, (1, h * w, c) for nhwc and (blocks, h * w, 16) for
/// nChw16c. Channels from `channels` on are zero. The pixels of an image are cut into `parts` of
/// `part_size` pixels, the last of which may be smaller.
struct BatchShape {
  std::int64_t images, blocks, pixels, lanes, channels;
  std::int64_t parts, part_size;
};

/// Combines the moments of parts, which measure_groups found for groups of one channel each.
struct BatchMoments {
  BatchShape shape;
  const Moments* moments;  // [images, parts, channels]
  float* dst;              // [2, blocks * lanes]: the means, then the variances
};

/// Writes channels [begin, end) of blocks * lanes.
TORCHALGO_DECLARE_KERNEL(void combine_moments(const BatchMoments& call, std::int64_t begin,
                                              std::int64_t end))

/// The sums that add_up_gradients finds for each channel.
enum class SumKind : std::uint8_t {
  kPlain,      // of diff
  kProducts,   // of diff * x
  kBatchNorm,  // of diff, and of diff * (x - mean) / sqrt(variance + epsilon)
  kClamped,    // as kBatchNorm, with diff as 0 where the clamp behind the batch norm is constant
};

/// The clamp behind a batch norm. Its input is (x - mean) * factor + shift, with numbers per
/// channel.
struct ClampBehind {
  const float* factors;  // [2, blocks * lanes]: factor, shift
  Activation activation;
};

/// Sums over each channel. `sets` is 1 for the sums over all images, and `images` for sums over
/// each image alone. kBatchNorm and
/// kClamped have two sums per channel, the others one.
struct GradientSums {
  BatchShape shape;
  SumKind kind;
  std::int64_t sets;
  const float* diff = nullptr;
  const float* x = nullptr;        // not read for kPlain
  const float* moments = nullptr;  // [2, blocks * lanes]; read for kBatchNorm and kClamped
  ClampBehind clamp = {};          // read for kClamped only
  float* partial = nullptr;        // [images * parts, sums per channel, blocks * lanes]
  float* dst = nullptr;            // [sets, sums per channel, blocks * lanes]
  double epsilon = 0;              // read for kBatchNorm and kClamped
};

[[nodiscard]] constexpr std::int64_t sums_per_channel(SumKind kind) {
  return kind == SumKind::kBatchNorm || kind == SumKind::kClamped ? 2 : 1;
}

/// Returns how many tasks add_up_gradients has per part of an image.
[[nodiscard]] constexpr std::int64_t strips_of(const BatchShape& shape) {
  if (shape.blocks > 1 || shape.lanes <= kGroupNormStrip) return shape.blocks;
  return (shape.lanes + kGroupNormStrip - 1) / kGroupNormStrip;
}

/// Writes the partial sums of tasks [begin, end) of images * strips * parts. In
/// add_up_gradients_bf16, diff and x point to elements of bf16.
TORCHALGO_DECLARE_KERNEL(void add_up_gradients(const GradientSums& call, std::int64_t begin,
                                               std::int64_t end);
                         void add_up_gradients_bf16(const GradientSums& call, std::int64_t begin,
                                                    std::int64_t end))
/// Writes the sums of channels [begin, end) of sets * blocks * lanes. It needs all partial sums.
TORCHALGO_DECLARE_KERNEL(void combine_gradients(const GradientSums& call, std::int64_t begin,
                                                std::int64_t end))

/// dst = activation((x - mean) * factor + shift + other * weight), with numbers per channel. The
/// activation is a clamp. This is the result of a batch norm, with a residual as `other`, and it is
/// the gradient of its input, with the result's gradient as `other`. If that is the gradient of a
/// clamp's result, `other` counts as 0 where the clamp is constant.
struct Normalize {
  BatchShape shape;
  const float* x;
  const float* other;    // null: none
  const float* factors;  // [4, blocks * lanes]: mean, factor, shift, weight
  float* dst;
  Activation activation;
  ClampBehind clamp;  // factors are null: none
};

/// Writes pixels [begin, end) of images * blocks * pixels. In run_normalize_bf16, x, other and dst
/// point to elements of bf16.
TORCHALGO_DECLARE_KERNEL(void run_normalize(const Normalize& call, std::int64_t begin,
                                            std::int64_t end);
                         void run_normalize_bf16(const Normalize& call, std::int64_t begin,
                                                 std::int64_t end))

}  // namespace torchalgo::kernels

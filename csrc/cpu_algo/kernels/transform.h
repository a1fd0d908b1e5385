// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The strides of a tensor in elements. Channel c of pixel x of image n lies at
/// n * image + c / block * block_stride + x * pixel + c % block * channel.
struct TensorView {
  std::int64_t image, block, block_stride, pixel, channel;
};

/// A change of layout, and of the type of elements: at most one side is bf16. One side may be
/// planar (pixel == 1), which means that a channel's pixels are adjacent. On any other side, the
/// channels of a pixel are adjacent.
struct Transform {
  const void* src;  // f32, or bf16 if `src_is_bf16`
  void* dst;
  bool src_is_bf16, dst_is_bf16;
  TensorView src_view, dst_view;
  std::int64_t pixels;           // d * h * w
  std::int64_t channels;         // of the tensor
  std::int64_t padded_channels;  // of dst; those above `channels` become zero
  /// True if the tasks of one pixel range are adjacent, false if those of one block of channels
  /// are.
  bool channels_inner;
};

inline constexpr std::int64_t kTransformPixels = 64;    // of a task
inline constexpr std::int64_t kTransformChannels = 16;  // of a task

/// Runs tasks [begin, end) of n * ceil(padded_channels / kTransformChannels) * ceil(pixels /
/// kTransformPixels).
TORCHALGO_DECLARE_KERNEL(void run_transform(const Transform& transform, std::int64_t begin,
                                            std::int64_t end))

}  // namespace torchalgo::kernels

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// A convolution of bf16 elements in nhwc with sums in f32, for processors that multiply numbers of
// bf16. Its division of the work is that of AMX, whose operands are tiles. A tile of A is up to 16
// output pixels times `depth` channels of one tap. Its rows lie a constant number of bytes apart,
// so that tiles are loaded straight from the image, or from a copy of it with zeros around. The
// build for other processors has the same packing and division.

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The arguments of bf16_conv. Sizes and strides count elements, unless the name says otherwise.
struct Bf16Conv {
  const void* src = nullptr;  // [images, h, w, c] in bf16, or in f32 with the strides below
  /// The packed weights in bf16, [ceil(k / 32)][steps][2][depth / 2][16][2], with zeros in the
  /// channels beyond. A step's channels are those of its tap, or of adjacent taps.
  const std::uint16_t* weights = nullptr;
  const float* bias = nullptr;     // [ceil(k / 32) * 32], zeros in the channels beyond
  const void* residual = nullptr;  // laid out as dst, or null
  void* dst = nullptr;             // [images, p, q, k]
  Activation activation = Activation::kNone;
  bool is_src_f32 = false, is_dst_f32 = false;
  std::int64_t src_image = 0, src_row = 0, src_pixel = 0, src_channel = 1;

  std::int64_t images = 1, h = 1, w = 1, c = 1, p = 1, q = 1, k = 1;
  std::int64_t r = 1, s = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;

  /// The memory from which tiles are loaded.
  enum Source : std::uint8_t {
    kImage,       // src itself, for a 1x1 filter without padding
    kRows,        // a copy of rows of the image with zeros around; a tile is part of one output row
    kShiftedRows  // one copy per column of the filter, without the pixels between those that it
                  // reads; a tile may run over several output rows
  };
  Source source = kImage;
  std::int64_t pixel = 1;                 // from pixel to pixel of the source: c, or more in a copy
  std::int64_t depth = 2;                 // channels of a step: even, at most 32
  std::int64_t steps = 1;                 // to sum over all taps and channels
  const std::int64_t* offsets = nullptr;  // [steps], from a tile's first pixel in the source

  std::int64_t tile_rows = 16;     // pixels of a tile
  std::int64_t tiles_per_row = 1;  // of an output row; unused for kShiftedRows
  // The division of the work. A task is a band of pixels times a part of the blocks of 32 channels.
  std::int64_t bands = 1;      // of all images
  std::int64_t band_rows = 1;  // output rows of a band, for kRows and kShiftedRows
  std::int64_t parts = 1;
  /// Blocks of 32 channels that are computed for one pair of tiles before the next pair.
  std::int64_t block_run = 1;
};

[[nodiscard]] constexpr std::int64_t bf16_conv_blocks(const Bf16Conv& conv) {
  return (conv.k + 31) / 32;
}
/// Returns the elements from one row of a tile to the next one.
[[nodiscard]] constexpr std::int64_t bf16_conv_pixel_step(const Bf16Conv& conv) {
  return (conv.source == Bf16Conv::kShiftedRows ? 1 : conv.stride_w) * conv.pixel;
}
/// Returns the rows of a copy, one below the other, that a band reads.
[[nodiscard]] constexpr std::int64_t bf16_conv_copy_rows(const Bf16Conv& conv) {
  return (conv.band_rows - 1) * conv.stride_h + (conv.r - 1) * conv.dilation_h + 1;
}
/// Returns the pixels of a row of a copy.
[[nodiscard]] constexpr std::int64_t bf16_conv_copy_width(const Bf16Conv& conv) {
  return conv.source == Bf16Conv::kShiftedRows
             ? conv.q
             : (conv.q - 1) * conv.stride_w + (conv.s - 1) * conv.dilation_w + 1;
}
/// Returns the rows of kShiftedRows whose numbers have the same remainder by the stride. They lie
/// together, so that the rows of a tap do, one for each output row.
[[nodiscard]] constexpr std::int64_t bf16_conv_plane_rows(const Bf16Conv& conv) {
  return (bf16_conv_copy_rows(conv) + conv.stride_h - 1) / conv.stride_h;
}
/// Returns the elements of a copy for one band. A tile may read beyond the pixels of its band.
[[nodiscard]] constexpr std::int64_t bf16_conv_copy_elements(const Bf16Conv& conv) {
  if (conv.source == Bf16Conv::kImage) return 0;
  const std::int64_t width = bf16_conv_copy_width(conv);
  const std::int64_t rows = conv.source == Bf16Conv::kRows
                                ? bf16_conv_copy_rows(conv)
                                : conv.s * conv.stride_h * bf16_conv_plane_rows(conv);
  return (rows * width + 16 * conv.stride_w) * conv.pixel;
}
/// Returns the bytes of scratch that one thread needs, a multiple of 64.
[[nodiscard]] constexpr std::int64_t bf16_conv_scratch_bytes(const Bf16Conv& conv) {
  return (bf16_conv_copy_elements(conv) * 2 + 63) / 64 * 64;
}
[[nodiscard]] constexpr std::int64_t bf16_conv_packed_elements(const Bf16Conv& conv) {
  return bf16_conv_blocks(conv) * conv.steps * conv.depth * 32;
}
[[nodiscard]] constexpr std::int64_t bf16_conv_tasks(const Bf16Conv& conv) {
  return conv.bands * conv.parts;
}

// Runs a task. The tasks of a band have adjacent numbers. `scratch` belongs to this thread, is
// aligned to 64 bytes, and holds the copy for `band`, or none if that is negative. The function
// updates `band`.
TORCHALGO_DECLARE_BF16_KERNEL(void bf16_conv(const Bf16Conv& conv, std::int64_t task, void* scratch,
                                             std::int64_t& band))

}  // namespace torchalgo::kernels

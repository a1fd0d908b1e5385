// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// A convolution as a product of pixels x K by K x output channels. The image is copied only if it
// must be padded on the left and right. Then the few rows in use are copied, one block of K at a
// time. Taps in the padding above and below are skipped. One loop nest runs nchw, nhwc and blocked
// sources, and nhwc and blocked results, which differ in strides only.

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/gemm_tile.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The arguments of conv_gemm. Channels of src lie in planes of `plane_width` adjacent floats.
/// nChw16c has c / 16 planes of 16, nchw c planes of 1, and nhwc any number of slices of a pixel,
/// which the algorithm chooses. K runs over (plane, r, s, lane). Strides and offsets count floats.
/// `_group` is the step from one group's channels to those of the next group.
struct ConvGemm {
  const float* src = nullptr;
  /// The packed weights, [groups][panel][K][panel's blocks * 16]. The panels of a group are
  /// Strips(blocks, panel_blocks).
  const float* weights = nullptr;
  const float* bias = nullptr;      // [groups][blocks * 16], zeros in the lanes beyond, or null
  const float* residual = nullptr;  // laid out as dst, or null
  float* dst = nullptr;
  Activation activation = Activation::kNone;

  std::int64_t images = 1, h = 1, w = 1, p = 1, q = 1;
  std::int64_t r = 1, s = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
  std::int64_t after_h = 0, after_w = 0;  // zeros after the image; pad_h and pad_w are before it
  std::int64_t dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;

  std::int64_t planes = 1, plane_width = 1;  // of one group
  std::int64_t src_image = 0, src_group = 0, src_plane = 0, src_row = 0, src_pixel = 0;
  std::int64_t columns = 1;  // output channels of one group
  std::int64_t dst_image = 0, dst_group = 0, dst_block = 0, dst_row = 0, dst_pixel = 0;
  bool pad_lanes = false;  // dst has whole blocks of 16 channels

  /// True to compute seven products of quarters instead of eight (strassen.h), which has its own
  /// packed weights. It needs p, h, r, s, strides and groups of 1, no padding, and planes of 16.
  bool strassen = false;

  // The division of the work. A task is a block of output pixels times a part of the panels.
  int panel_blocks = 2;               // blocks of 16 output channels per panel
  std::int64_t block_planes = 1;      // planes per block of K
  std::int64_t blocks_per_image = 1;  // 1: a block may hold block_images whole images
  std::int64_t block_images = 1;
  std::int64_t panel_parts = 1;
  bool prefetch = false;        // of the next panel, for weights that do not stay in L2
  std::int64_t rows_below = 0;  // of src that the caller reads next, to be prefetched
};

/// Returns true if there are zeros beside the rows of the image. Then these are copied with them.
[[nodiscard]] constexpr bool has_wide_rows(const ConvGemm& conv) {
  return conv.pad_w > 0 || conv.after_w > 0;
}

// Returns the bytes of scratch that `conv_gemm` needs per thread, a multiple of 64. It shrinks if
// blocks_per_image grows.
TORCHALGO_DECLARE_KERNEL(std::int64_t conv_gemm_scratch_bytes(const ConvGemm& conv))

[[nodiscard]] constexpr std::int64_t conv_gemm_blocks(const ConvGemm& conv) {
  return (conv.images + conv.block_images - 1) / conv.block_images * conv.blocks_per_image;
}
[[nodiscard]] constexpr std::int64_t conv_gemm_tasks(const ConvGemm& conv) {
  return conv_gemm_blocks(conv) * conv.panel_parts;
}

// Runs tasks [begin, end). Tasks of one part have adjacent numbers. `scratch` belongs to this
// thread and is aligned to 64 bytes.
TORCHALGO_DECLARE_KERNEL(void conv_gemm(const ConvGemm& conv, std::int64_t begin, std::int64_t end,
                                        void* scratch))

}  // namespace torchalgo::kernels

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/padded_backward_filter.h"

#include "cpu_algo/kernels/outer_product.h"

namespace torchalgo::kernels {
namespace {

std::int64_t at_most(std::int64_t a, std::int64_t high) { return a < high ? a : high; }
std::int64_t at_least(std::int64_t a, std::int64_t low) { return a < low ? low : a; }

void fill_zeros(float* at, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) at[i] = 0;
}

// Copies the rows of src that `rows` of diff_dst read. copy_pixels(from, to, count) copies adjacent
// pixels of `channels` floats each.
template <class CopyPixels>
void copy_padded(const PaddedBackwardFilter& conv, const float* image, const DstRows& rows,
                 std::int64_t channels, float* copy, const CopyPixels& copy_pixels) {
  const std::int64_t width = (conv.q - 1) * conv.stride_w + conv.s;
  const std::int64_t left = at_most(conv.pad_w, width);
  const std::int64_t inside = at_least(at_most(conv.w, width - left), 0);
  const std::int64_t first = rows.begin * conv.stride_h - conv.pad_h;
  const std::int64_t end = (rows.end - 1) * conv.stride_h - conv.pad_h + conv.r;
  for (std::int64_t y = first; y < end; ++y, copy += width * channels) {
    if (y < 0 || y >= conv.h) {
      fill_zeros(copy, width * channels);
      continue;
    }
    fill_zeros(copy, left * channels);
    copy_pixels(image + y * conv.w * conv.src_steps.pixel, copy + left * channels, inside);
    fill_zeros(copy + (left + inside) * channels, (width - left - inside) * channels);
  }
}

// ---- few input channels
// --------------------------------------------------------------------------

void copy_stem(const PaddedBackwardFilter& conv, const DstRows& rows, float* copy) {
  const PixelSteps& steps = conv.src_steps;
  const auto copy_pixels = [&](const float* from, float* to, std::int64_t count) {
    for (std::int64_t c = 0; c < conv.c; ++c) {
      for (std::int64_t x = 0; x < count; ++x)
        to[x * conv.c + c] = from[c * steps.channel + x * steps.pixel];
    }
  };
  copy_padded(conv, conv.src + rows.image * steps.image, rows, conv.c, copy, copy_pixels);
}

std::int64_t k_blocks_of(const PaddedBackwardFilter& conv) {
  return (conv.k + kBlock - 1) / kBlock;
}

// A row of taps of all input channels is adjacent in the copy: these are the rows of the product.
void multiply_stem(const PaddedBackwardFilter& conv, std::int64_t, const DstRows& rows, float* copy,
                   float* sums, bool is_first) {
  copy_stem(conv, rows, copy);
  const std::int64_t width = (conv.q - 1) * conv.stride_w + conv.s;
  const std::int64_t taps = conv.s * conv.c, blocks = k_blocks_of(conv);
  const std::int64_t parts = (blocks + kMaxOuterBlocks - 1) / kMaxOuterBlocks;
  OuterProduct product;
  product.a.line = conv.stride_h * width * conv.c;
  product.a.pixel = conv.stride_w * conv.c;
  product.b.line = conv.q * kBlock;
  product.b_block = conv.dst_steps.block;
  product.lines = rows.end - rows.begin;
  product.pixels = conv.q;
  product.c_block = conv.r * taps * kBlock;
  product.accumulate = !is_first;
  const float* const diff_dst =
      conv.diff_dst + rows.image * conv.dst_steps.image + rows.begin * conv.q * kBlock;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = blocks * part / parts, end = blocks * (part + 1) / parts;
    product.b.at = diff_dst + begin * conv.dst_steps.block;
    for (std::int64_t r = 0; r < conv.r; ++r) {
      product.a.at = copy + r * width * conv.c;
      product.c = sums + begin * product.c_block + r * taps * kBlock;
      add_outer_product(product, static_cast<int>(taps), static_cast<int>(end - begin));
    }
  }
}

float sum_of_parts(const float* at, std::int64_t parts, std::int64_t part_step) {
  float sum = at[0];
  for (std::int64_t part = 1; part < parts; ++part) sum += at[part * part_step];
  return sum;
}

void finish_stem(const PaddedBackwardFilter& conv, std::int64_t block, const float* sums,
                 std::int64_t parts, std::int64_t part_step) {
  const std::int64_t taps = conv.r * conv.s;
  const float* const from = sums + block * taps * conv.c * kBlock;
  const std::int64_t k_end = at_most(conv.k, (block + 1) * kBlock);
  for (std::int64_t k = block * kBlock; k < k_end; ++k) {
    for (std::int64_t c = 0; c < conv.c; ++c) {
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        conv.diff_weights[(k * conv.c + c) * taps + tap] =
            sum_of_parts(from + (tap * conv.c + c) * kBlock + k % kBlock, parts, part_step);
      }
    }
  }
}

// ---- depthwise
// -----------------------------------------------------------------------------------

// The copy and the rows of diff_dst of one vector of channels.
struct Planes {
  const float* src;                           // of the first row of taps
  const float* diff_dst;                      // of the first row
  std::int64_t src_line, src_row, src_pixel;  // floats from a result's row, a tap's row, a result
  std::int64_t dst_line, dst_pixel;
  std::int64_t lines, pixels;
};

// Adds the products of `rows` rows of `taps` taps to sums, which are kBlock floats apart.
template <int rows, int taps>
void add_taps(const Planes& planes, float* sums, bool is_first) {
  Vec acc[rows][taps];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int s = 0; s < taps; ++s)
      acc[r][s] = is_first ? Vec(0.0F) : Vec::loadu(sums + (r * taps + s) * kBlock);
  }
  for (std::int64_t line = 0; line < planes.lines; ++line) {
    const float* src = planes.src + line * planes.src_line;
    const float* diff_dst = planes.diff_dst + line * planes.dst_line;
    for (std::int64_t x = 0; x < planes.pixels; ++x) {
      const Vec value = Vec::loadu(diff_dst);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
        for (int s = 0; s < taps; ++s)
          acc[r][s] = fmadd(value, Vec::loadu(src + r * planes.src_row + s * kBlock), acc[r][s]);
      }
      src += planes.src_pixel;
      diff_dst += planes.dst_pixel;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int s = 0; s < taps; ++s) acc[r][s].store(sums + (r * taps + s) * kBlock);
  }
}

// The accumulators that the registers hold.
constexpr int kAccumulators = kNativeLanes == 16 ? 28 : kNativeLanes == 8 ? 14 : 6;

// Adds the products of all `taps` columns of taps, and of as many rows at a time as fit registers.
template <int taps>
void add_all_rows(const PaddedBackwardFilter& conv, Planes planes, float* sums, bool is_first) {
  constexpr int kRows = kAccumulators / taps < 1 ? 1 : kAccumulators / taps;
  constexpr int kMany = kRows > taps ? taps : kRows;  // filters are square as a rule
  std::int64_t r = 0;
  for (; r + kMany <= conv.r; r += kMany) {
    add_taps<kMany, taps>(planes, sums, is_first);
    planes.src += kMany * planes.src_row;
    sums += kMany * taps * kBlock;
  }
  for (; r < conv.r; ++r) {
    add_taps<1, taps>(planes, sums, is_first);
    planes.src += planes.src_row;
    sums += taps * kBlock;
  }
}

// Adds the products of any number of taps.
void add_any(const PaddedBackwardFilter& conv, Planes planes, float* sums, bool is_first) {
  const float* const src = planes.src;
  for (std::int64_t r = 0; r < conv.r; ++r) {
    for (std::int64_t s = 0; s < conv.s; ++s) {
      planes.src = src + r * planes.src_row + s * kBlock;
      add_taps<1, 1>(planes, sums + (r * conv.s + s) * kBlock, is_first);
    }
  }
}

// In nhwc, the last block of channels ends at c, so that no lane is masked.
bool is_nhwc(const PaddedBackwardFilter& conv) { return conv.src_steps.pixel != kBlock; }

// Returns the first channel of a block.
std::int64_t first_channel(const PaddedBackwardFilter& conv, std::int64_t block) {
  return is_nhwc(conv) ? at_most(block * kBlock, conv.c - kBlock) : block * kBlock;
}
std::int64_t block_offset(const PaddedBackwardFilter& conv, const PixelSteps& steps,
                          std::int64_t block) {
  return is_nhwc(conv) ? first_channel(conv, block) : block * steps.block;
}

void multiply_depthwise(const PaddedBackwardFilter& conv, std::int64_t block, const DstRows& rows,
                        float* copy, float* sums, bool is_first) {
  const std::int64_t width = (conv.q - 1) * conv.stride_w + conv.s;
  const std::int64_t pixel = conv.src_steps.pixel;
  const auto copy_pixels = [&](const float* from, float* to, std::int64_t count) {
    for (std::int64_t x = 0; x < count; ++x, from += pixel, to += kBlock) {
      for (int lane = 0; lane < kBlock; lane += kLanes) Vec::loadu(from + lane).store(to + lane);
    }
  };
  copy_padded(
      conv,
      conv.src + rows.image * conv.src_steps.image + block_offset(conv, conv.src_steps, block),
      rows, kBlock, copy, copy_pixels);
  Planes planes = {};
  planes.src_row = width * kBlock;
  planes.src_line = conv.stride_h * planes.src_row;
  planes.src_pixel = conv.stride_w * kBlock;
  planes.dst_pixel = conv.dst_steps.pixel;
  planes.dst_line = conv.q * planes.dst_pixel;
  planes.lines = rows.end - rows.begin;
  planes.pixels = conv.q;
  for (int lane = 0; lane < kBlock; lane += kLanes) {
    planes.src = copy + lane;
    planes.diff_dst = conv.diff_dst + rows.image * conv.dst_steps.image +
                      block_offset(conv, conv.dst_steps, block) + rows.begin * planes.dst_line +
                      lane;
    switch (conv.s) {
      case 3:
        add_all_rows<3>(conv, planes, sums + lane, is_first);
        break;
      case 5:
        add_all_rows<5>(conv, planes, sums + lane, is_first);
        break;
      case 7:
        add_all_rows<7>(conv, planes, sums + lane, is_first);
        break;
      default:
        add_any(conv, planes, sums + lane, is_first);
    }
  }
}

void finish_depthwise(const PaddedBackwardFilter& conv, std::int64_t block, const float* sums,
                      std::int64_t parts, std::int64_t part_step) {
  const std::int64_t taps = conv.r * conv.s, begin = first_channel(conv, block);
  // Channels that the last block shares with the one before are written once.
  for (std::int64_t k = block * kBlock; k < at_most(conv.k, (block + 1) * kBlock); ++k) {
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      conv.diff_weights[k * taps + tap] =
          sum_of_parts(sums + tap * kBlock + k - begin, parts, part_step);
    }
  }
}

}  // namespace

namespace TORCHALGO_ISA {

PaddedBackwardFilterKernels stem_backward_filter_kernels() {
  return {&multiply_stem, &finish_stem};
}
PaddedBackwardFilterKernels depthwise_backward_filter_kernels() {
  return {&multiply_depthwise, &finish_depthwise};
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels

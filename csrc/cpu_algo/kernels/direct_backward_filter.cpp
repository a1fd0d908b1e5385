// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/direct_backward_filter.h"

#include "cpu_algo/kernels/outer_product.h"

namespace torchalgo::kernels {
namespace {

constexpr std::int64_t kSquare = kBlock * kBlock;

std::int64_t at_most(std::int64_t a, std::int64_t high) { return a < high ? a : high; }
std::int64_t at_least(std::int64_t a, std::int64_t low) { return a < low ? low : a; }

// Results [begin, end) along an axis.
struct Span {
  std::int64_t begin, end;
};
// Returns the results of [begin, end) for which a tap reads a pixel inside the image.
Span inside(Span all, std::int64_t tap, std::int64_t stride, std::int64_t pad, std::int64_t size) {
  const std::int64_t before = pad - tap;  // pixels by which the first result's tap lies outside
  const std::int64_t begin = at_least(all.begin, before > 0 ? (before + stride - 1) / stride : 0);
  const std::int64_t last = size - 1 + before;
  return {begin, at_least(at_most(all.end, last < 0 ? 0 : last / stride + 1), begin)};
}

// Returns the results of [begin, end) for which all `taps` read pixels inside the image.
Span inside_of_all(Span all, std::int64_t taps, std::int64_t stride, std::int64_t pad,
                   std::int64_t size) {
  const Span first = inside(all, 0, stride, pad, size);
  const Span last = inside(all, taps - 1, stride, pad, size);
  return {first.begin, at_least(last.end, first.begin)};
}

// Returns 0 times the sum of the pixels of `line` outside of `x`: zero, or NaN.
Vec zero_of(const float* line, Span x, std::int64_t count) {
  Vec sum(0.0F);
  const Vec zero(0.0F);
  for (std::int64_t i = 0; i < x.begin; ++i) sum = fmadd(Vec::loadu(line + i * kBlock), zero, sum);
  for (std::int64_t i = x.end; i < count; ++i)
    sum = fmadd(Vec::loadu(line + i * kBlock), zero, sum);
  return sum;
}

// Sets all sums of output channel k to `value`.
void fill_row(const DirectBackwardFilter& conv, const FilterBlocks& blocks, std::int64_t k,
              float value, float* sums) {
  const std::int64_t width = blocks.c_end - blocks.c_begin;
  float* const row = sums + (k / kBlock - blocks.k_begin) * width * kSquare + k % kBlock * kBlock;
  for (std::int64_t tap = 0; tap < conv.r * conv.s; ++tap) {
    for (std::int64_t c = 0; c < width * kBlock; ++c)
      row[(tap * blocks.count() + c / kBlock) * kSquare + c % kBlock] = value;
  }
}

// The products leave out the zeros around the image. A NaN or an infinity of diff_dst times such a
// zero is NaN, as in PyTorch. So all taps of its output channel become NaN.
void add_padding(const DirectBackwardFilter& conv, const FilterBlocks& blocks,
                 const ImageRows& rows, float* sums) {
  const Span y =
      inside_of_all({rows.y_begin, rows.y_end}, conv.r, conv.stride_h, conv.pad_h, conv.h);
  const Span x = inside_of_all({0, conv.q}, conv.s, conv.stride_w, conv.pad_w, conv.w);
  const bool is_inside =
      y.begin == rows.y_begin && y.end == rows.y_end && x.begin == 0 && x.end == conv.q;
  if (is_inside) return;
  for (std::int64_t k = blocks.k_begin * kBlock; k < blocks.k_end * kBlock; k += kLanes) {
    Vec sum(0.0F);
    for (std::int64_t image = rows.begin; image < rows.end; ++image) {
      const float* const plane =
          conv.diff_dst + (image * conv.k_blocks + k / kBlock) * conv.p * conv.q * kBlock;
      for (std::int64_t row = rows.y_begin; row < rows.y_end; ++row) {
        const bool has_all = row >= y.begin && row < y.end;
        sum = sum +
              zero_of(plane + row * conv.q * kBlock + k % kBlock, has_all ? x : Span{0, 0}, conv.q);
      }
    }
    float lanes[kLanes];
    sum.store(lanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (lanes[lane] != 0) fill_row(conv, blocks, k + lane, lanes[lane], sums);
    }
  }
}

// Prefetches what a product reads of one block, `ahead` floats further.
void fetch(const OuterSide& side, const OuterProduct& product, std::int64_t ahead) {
  for (std::int64_t line = 0; line < product.lines; ++line) {
    const float* at = side.at + line * side.line + ahead;
    for (std::int64_t pixel = 0; pixel < product.pixels; ++pixel, at += side.pixel)
      __builtin_prefetch(at, 0, 2);
  }
}

// Adds the products of one tap to the sums of all of its blocks.
void multiply_blocks(const FilterBlocks& blocks, OuterProduct product, std::int64_t a_block,
                     float* sums, bool fetches) {
  const std::int64_t width = blocks.c_end - blocks.c_begin;
  const std::int64_t parts = (width + kMaxOuterBlocks - 1) / kMaxOuterBlocks;
  const OuterProduct all = product;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = width * part / parts, end = width * (part + 1) / parts;
    product.b.at = all.b.at + begin * all.b_block;
    for (std::int64_t block = 0; fetches && block < end - begin; ++block)
      fetch(product.b, product, block * all.b_block + product.lines * product.b.line);
    for (std::int64_t k = 0; k < blocks.k_end - blocks.k_begin; ++k) {
      product.a.at = all.a.at + k * a_block;
      if (part == 0 && fetches) fetch(product.a, product, product.lines * product.a.line);
      product.c = sums + (k * width + begin) * kSquare;
      add_outer_product(product, kBlock, static_cast<int>(end - begin));
    }
  }
}

void multiply(const DirectBackwardFilter& conv, const FilterBlocks& blocks, const ImageRows& rows,
              float* sums, bool is_first) {
  const std::int64_t src_plane = conv.h * conv.w * kBlock, dst_plane = conv.p * conv.q * kBlock;
  OuterProduct product;
  product.a.image = conv.k_blocks * dst_plane;
  product.a.line = conv.q * kBlock;
  product.b.image = conv.c_blocks * src_plane;
  product.b.line = conv.stride_h * conv.w * kBlock;
  product.b.pixel = conv.stride_w * kBlock;
  product.b_block = src_plane;
  product.images = rows.end - rows.begin;
  product.c_block = kSquare;
  product.accumulate = !is_first;
  const float* const diff_dst =
      conv.diff_dst + rows.begin * product.a.image + blocks.k_begin * dst_plane;
  const float* const src = conv.src + rows.begin * product.b.image + blocks.c_begin * src_plane;
  for (std::int64_t r = 0; r < conv.r; ++r) {
    const Span y = inside({rows.y_begin, rows.y_end}, r, conv.stride_h, conv.pad_h, conv.h);
    for (std::int64_t s = 0; s < conv.s; ++s) {
      const Span x = inside({0, conv.q}, s, conv.stride_w, conv.pad_w, conv.w);
      product.lines = y.end - y.begin;
      product.pixels = x.end - x.begin;
      product.a.at = diff_dst + (y.begin * conv.q + x.begin) * kBlock;
      product.b.at = src + ((y.begin * conv.stride_h + r - conv.pad_h) * conv.w +
                            x.begin * conv.stride_w + s - conv.pad_w) *
                               kBlock;
      multiply_blocks(blocks, product, dst_plane,
                      sums + (r * conv.s + s) * blocks.count() * kSquare,
                      r + s == 0 && rows.y_end < conv.p);
    }
  }
  add_padding(conv, blocks, rows, sums);
}

// Writes [lanes][taps] from [taps][16].
void store_taps(const float* from, std::int64_t taps, std::int64_t lanes, float* to) {
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    for (std::int64_t tap = 0; tap < taps; ++tap) *to++ = from[tap * kBlock + lane];
  }
}

void finish(const DirectBackwardFilter& conv, const FilterBlocks& blocks, const float* sums,
            std::int64_t parts, std::int64_t part_step, std::int64_t first_c) {
  const std::int64_t taps = conv.r * conv.s, width = blocks.c_end - blocks.c_begin;
  const std::int64_t tap_step = blocks.count() * kSquare;
  const std::int64_t k_end = at_most(blocks.k_end * kBlock, conv.k);
  alignas(64) float rows[kMostBackwardFilterTaps * kBlock];
  for (std::int64_t k = blocks.k_begin * kBlock; k < k_end; ++k) {
    for (std::int64_t block = 0; block < width; ++block) {
      const std::int64_t place = (k / kBlock - blocks.k_begin) * width + block;
      const float* const from = sums + place * kSquare + k % kBlock * kBlock;
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        for (int lane = 0; lane < kBlock; lane += kLanes) {
          Vec sum = Vec::loadu(from + tap * tap_step + lane);
          for (std::int64_t part = 1; part < parts; ++part)
            sum = sum + Vec::loadu(from + part * part_step + tap * tap_step + lane);
          sum.store(rows + tap * kBlock + lane);
        }
      }
      const std::int64_t c = first_c + block * kBlock;
      store_taps(rows, taps, at_most(conv.c - c, kBlock),
                 conv.diff_weights + (k * conv.c + c) * taps);
    }
  }
}

}  // namespace

namespace TORCHALGO_ISA {

DirectBackwardFilterKernels direct_backward_filter_kernels() { return {&multiply, &finish}; }

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels

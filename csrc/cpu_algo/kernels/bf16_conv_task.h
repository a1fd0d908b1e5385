// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The parts that the builds of bf16_conv share: the copies of the image, the order of the work, and
// the epilogue. Only their sources may include it, as epilogue.h: everything is in an anonymous
// namespace. The builds differ in `Multiply`.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu_algo/kernels/bf16_conv.h"
#include "cpu_algo/kernels/epilogue.h"
#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels {
namespace {

constexpr int kBlockChannels = 32;  // output channels of a block: two tiles
constexpr int kMostRows = 16;       // of a tile
constexpr int kBlockSums = 2 * kMostRows * kBlockChannels;

/// The pixels of a task: rows of one image, or tiles [first, first + tiles) of all images if the
/// tiles are loaded from src itself.
struct Band {
  std::int64_t first = 0, tiles = 0;
  std::int64_t image = 0, row = 0, rows = 0;
};

inline Band band_of(const Bf16Conv& conv, std::int64_t number) {
  if (conv.source == Bf16Conv::kImage) {
    const std::int64_t tiles = conv.images * conv.p * conv.tiles_per_row, pairs = (tiles + 1) / 2;
    const std::int64_t first = pairs * number / conv.bands * 2;
    return {first, std::min(pairs * (number + 1) / conv.bands * 2, tiles) - first};
  }
  const std::int64_t per_image = conv.bands / conv.images;
  Band band;
  band.image = number / per_image;
  band.row = number % per_image * conv.band_rows;
  band.rows = std::min(conv.band_rows, conv.p - band.row);
  band.tiles = conv.source == Bf16Conv::kRows
                   ? band.rows * conv.tiles_per_row
                   : (band.rows * conv.q + conv.tile_rows - 1) / conv.tile_rows;
  return band;
}

/// A tile's pixels. Rows [skip, skip + count) are results of this tile.
struct Tile {
  const Bf16* src;
  std::int64_t skip, count;
};

/// The tiles of a band, in the order of their pixels in dst. There is no gap between them.
class Tiles {
 public:
  /// `copy` is the copy of the band's image.
  Tiles(const Bf16Conv& conv, const Band& band, const Bf16* copy)
      : rows_(conv.tile_rows),
        step_(bf16_conv_pixel_step(conv)),
        length_(conv.q),
        src_(copy),
        pixel_((band.image * conv.p + band.row) * conv.q) {
    if (conv.source == Bf16Conv::kShiftedRows) length_ *= band.rows;
    if (conv.source == Bf16Conv::kRows)
      line_step_ = conv.stride_h * bf16_conv_copy_width(conv) * conv.pixel;
    if (conv.source != Bf16Conv::kImage) return;
    // There is nothing to read behind the image, so the last tile of a row ends with it.
    ends_with_row_ = true;
    const std::int64_t line = band.first / conv.tiles_per_row;
    start_ = band.first % conv.tiles_per_row * rows_;
    lines_ = conv.p;
    line_ = line % conv.p;
    line_step_ = conv.stride_h * conv.w * conv.pixel;
    image_step_ = conv.h * conv.w * conv.pixel - conv.p * line_step_;
    src_ = static_cast<const Bf16*>(conv.src) + line / conv.p * conv.h * conv.w * conv.pixel +
           line_ * line_step_;
    pixel_ = line * conv.q + start_;
  }

  /// Returns the first pixel of the next tile in dst.
  [[nodiscard]] std::int64_t pixel() const { return pixel_; }

  Tile next() {
    const std::int64_t last = length_ - rows_;
    const std::int64_t first = ends_with_row_ && start_ > last ? last : start_;
    const std::int64_t skip = start_ - first, left = length_ - first;
    const Tile tile = {src_ + first * step_, skip, (left < rows_ ? left : rows_) - skip};
    pixel_ += tile.count;
    start_ += rows_;
    if (start_ >= length_) {
      start_ = 0;
      src_ += line_step_;
      if (++line_ == lines_) {
        line_ = 0;
        src_ += image_step_;
      }
    }
    return tile;
  }

 private:
  std::int64_t rows_, step_, length_;
  const Bf16* src_;  // of the output row
  std::int64_t pixel_;
  std::int64_t start_ = 0;  // in the output row
  std::int64_t line_ = 0, lines_ = 0, line_step_ = 0, image_step_ = 0;
  bool ends_with_row_ = false;
};

inline void clear(Bf16* at, std::int64_t count) {
  std::memset(at, 0, static_cast<std::size_t>(count) * sizeof(Bf16));
}

/// Copies `count` pixels of bf16 that lie `step` pixels apart.
inline void copy_pixels(const Bf16Conv& conv, const Bf16* src, std::int64_t step,
                        std::int64_t count, Bf16* dst) {
  const auto bytes = static_cast<std::size_t>(conv.c) * sizeof(Bf16);
  if (step == 1 && conv.pixel == conv.c) {
    std::memcpy(dst, src, static_cast<std::size_t>(count) * bytes);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i, src += step * conv.c, dst += conv.pixel) {
    std::memcpy(dst, src, bytes);
    clear(dst + conv.c, conv.pixel - conv.c);
  }
}

/// Rounds `count` adjacent pixels of an image of up to 4 channels, each a plane, to pixels of 4
/// elements. Returns how many were written.
inline std::int64_t interleave_planes(const Bf16Conv& conv, const float* src, std::int64_t count,
                                      Bf16* dst) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes, src += kLanes) {
    Vec planes[4] = {Vec(0.0F), Vec(0.0F), Vec(0.0F), Vec(0.0F)};
    for (std::int64_t c = 0; c < conv.c; ++c) planes[c] = Vec::loadu(src + c * conv.src_channel);
    const auto even = interleave2(planes[0], planes[2]), odd = interleave2(planes[1], planes[3]);
    const auto low = interleave2(even.first, odd.first);
    const auto high = interleave2(even.second, odd.second);
    for (const Vec& pixels : {low.first, low.second, high.first, high.second}) {
      pixels.store(dst);
      dst += kLanes;
    }
  }
  return i;
}

/// Rounds `count` pixels of f32 that lie `step` pixels apart.
inline void copy_pixels(const Bf16Conv& conv, const float* src, std::int64_t step,
                        std::int64_t count, Bf16* dst) {
  std::int64_t i = 0;
  if (step == 1 && conv.src_pixel == 1 && conv.pixel == 4) {
    i = interleave_planes(conv, src, count, dst);
  }
  for (; i < count; ++i) {
    const float* const from = src + i * step * conv.src_pixel;
    Bf16* const to = dst + i * conv.pixel;
    if (conv.src_channel == 1) {
      for (std::int64_t c = 0; c < conv.c; c += kLanes) {
        const std::int64_t lanes = std::min<std::int64_t>(kLanes, conv.c - c);
        Vec::loadu(from + c, lanes).store(to + c, lanes);
      }
    } else {
      for (std::int64_t c = 0; c < conv.c; ++c) Vec(from[c * conv.src_channel]).store(to + c, 1);
    }
    clear(to + conv.c, conv.pixel - conv.c);
  }
}

/// Copies every `step`-th pixel of a row of the image, from column `first` on, which may lie in the
/// padding, to `count` pixels.
template <class Element>
inline void copy_row(const Bf16Conv& conv, const Element* row, std::int64_t first,
                     std::int64_t step, std::int64_t count, Bf16* dst) {
  const std::int64_t before = std::min(count, first < 0 ? (-first + step - 1) / step : 0);
  const std::int64_t end =
      std::clamp<std::int64_t>((conv.w - first + step - 1) / step, before, count);
  clear(dst, before * conv.pixel);
  copy_pixels(conv, row + (first + before * step) * conv.src_pixel, step, end - before,
              dst + before * conv.pixel);
  clear(dst + end * conv.pixel, (count - end) * conv.pixel);
}

/// Copies what a band reads of its image.
template <class Element>
inline void copy_band(const Bf16Conv& conv, const Band& band, Bf16* copy) {
  const auto* image = static_cast<const Element*>(conv.src) + band.image * conv.src_image;
  const std::int64_t width = bf16_conv_copy_width(conv), planes = conv.stride_h;
  const std::int64_t plane = bf16_conv_plane_rows(conv);
  const std::int64_t top = band.row * conv.stride_h - conv.pad_h;
  const std::int64_t rows = (band.rows - 1) * conv.stride_h + (conv.r - 1) * conv.dilation_h + 1;
  const bool is_shifted = conv.source == Bf16Conv::kShiftedRows;
  for (std::int64_t shift = 0; shift < (is_shifted ? conv.s : 1); ++shift) {
    // A filter of one row reads every stride-th row.
    for (std::int64_t i = 0; i < rows; i += conv.r == 1 ? conv.stride_h : 1) {
      const std::int64_t row = is_shifted ? (shift * planes + i % planes) * plane + i / planes : i;
      Bf16* const to = copy + row * width * conv.pixel;
      const std::int64_t y = top + i;
      if (y < 0 || y >= conv.h) {
        clear(to, width * conv.pixel);
        continue;
      }
      copy_row(conv, image + y * conv.src_row, shift * conv.dilation_w - conv.pad_w,
               is_shifted ? conv.stride_w : 1, width, to);
    }
  }
}

/// Stores the vectors of a block's pixel.
template <class Dst>
inline void store(const Vec (&values)[kBlockChannels / kLanes], Dst* dst) {
  for (int v = 0; v < kBlockChannels / kLanes; ++v) values[v].store(dst + v * kLanes);
}
#if defined(__AVX512BF16__)
inline void store(const Vec (&values)[2], Bf16* dst) {
  const __m512bh both = _mm512_cvtne2ps_pbh(values[1], values[0]);
  _mm512_storeu_si512(dst, reinterpret_cast<__m512i>(both));
}
#endif

/// Sums of adjacent pixels in a block of 32 channels that are yet to be stored.
struct Results {
  float* sums = nullptr;  // [rows][32]
  std::int64_t rows = 0;
  std::int64_t at = 0;  // of the first result in dst
  std::int64_t channels = kBlockChannels;
};

/// The operations that apply an activation. There is no operation in vain: beside products of
/// tiles, the operations of the epilogue take a large part of the time.
enum Activates { kNotAtAll, kMaximum, kClamp, kInMemory };
inline Activates activates(const Activation& activation) {
  if (activation.kind == Activation::kNone) return kNotAtAll;
  if (activation.kind == Activation::kRelu) return kMaximum;
  return is_clamp(activation) ? kClamp : kInMemory;
}

/// Applies residual and activation to sums, and stores them.
template <class Dst, bool has_residual, Activates how>
void store_results(const Bf16Conv& conv, const Results& results) {
  constexpr int kVectors = kBlockChannels / kLanes;
  const Clamp clamp = how == kInMemory ? Clamp() : clamp_of(conv.activation);
  const Vec low(clamp.low), high(clamp.high);
  const std::int64_t pitch = conv.k;
  float* sums = results.sums;
  Dst* dst = static_cast<Dst*>(conv.dst) + results.at;
  const Dst* residual =
      has_residual ? static_cast<const Dst*>(conv.residual) + results.at : nullptr;
  const auto value = [&](int v, std::int64_t lanes) {
    Vec x = Vec::loadu(sums + v * kLanes);
    if constexpr (has_residual) x = x + Vec::loadu(residual + v * kLanes, lanes);
    if constexpr (how == kMaximum || how == kClamp) x = clamp_min(x, low);
    if constexpr (how == kClamp) x = clamp_max(x, high);
    return x;
  };
  const auto next_row = [&] {
    sums += kBlockChannels;
    dst += pitch;
    if constexpr (has_residual) residual += pitch;
  };
  if (how != kInMemory && results.channels == kBlockChannels) {
    for (std::int64_t row = 0; row < results.rows; ++row, next_row()) {
      Vec values[kVectors];
      for (int v = 0; v < kVectors; ++v) values[v] = value(v, kLanes);
      store(values, dst);
    }
    return;
  }
  const auto lanes_of = [&](int v) {
    return std::clamp<std::int64_t>(results.channels - v * kLanes, 0, kLanes);
  };
  if constexpr (how == kInMemory) {
    for (std::int64_t row = 0; row < results.rows; ++row, next_row()) {
      for (int v = 0; v < kVectors; ++v) {
        if (lanes_of(v) > 0) value(v, lanes_of(v)).store(sums + v * kLanes);
      }
    }
    activate(results.sums, results.sums, results.rows * kBlockChannels, conv.activation);
    sums = results.sums;
    dst -= results.rows * pitch;
  }
  for (std::int64_t row = 0; row < results.rows; ++row, next_row()) {
    for (int v = 0; v < kVectors; ++v) {
      if (lanes_of(v) == 0) break;
      const Vec x = how == kInMemory ? Vec::loadu(sums + v * kLanes) : value(v, lanes_of(v));
      x.store(dst + v * kLanes, lanes_of(v));
    }
  }
}

using StoreResults = void (*)(const Bf16Conv&, const Results&);

template <class Dst, bool has_residual>
inline StoreResults pick_store(const Activation& activation) {
  switch (activates(activation)) {
    case kNotAtAll:
      return &store_results<Dst, has_residual, kNotAtAll>;
    case kMaximum:
      return &store_results<Dst, has_residual, kMaximum>;
    case kClamp:
      return &store_results<Dst, has_residual, kClamp>;
    case kInMemory:
      break;
  }
  return &store_results<Dst, has_residual, kInMemory>;
}
inline StoreResults pick_store(const Bf16Conv& conv) {
  if (conv.residual == nullptr) {
    return conv.is_dst_f32 ? pick_store<float, false>(conv.activation)
                           : pick_store<Bf16, false>(conv.activation);
  }
  return conv.is_dst_f32 ? pick_store<float, true>(conv.activation)
                         : pick_store<Bf16, true>(conv.activation);
}

/// One pair of tiles, or a single one, times one block of weights.
struct Product {
  Tile tiles[2];          // equal for a single tile
  bool is_pair, is_wide;  // two tiles of pixels, two tiles of channels
  const Bf16* weights;    // of the block
  const float* bias;      // of the block
  // The first result; null if store_results() has to store them, as it has to if not is_wide.
  Bf16* dst = nullptr;
  const Bf16* next = nullptr;   // what is needed later, to be prefetched
  std::int64_t next_lines = 0;  // of 64 bytes, per step
};

/// Computes a part of the blocks for all tiles of a band. multiply(product, sums) writes the sums
/// of the product's tiles, one below the other. They begin with the bias. If product.dst is not
/// null, it may store the results instead: all rows of the tiles one below the other, of all
/// channels of the block. Then it returns true.
template <class Multiply>
inline void run_products(const Bf16Conv& conv, std::int64_t part, const Band& band,
                         const Bf16* copy, const Multiply& multiply) {
  const StoreResults store_results = pick_store(conv);
  const std::int64_t blocks = bf16_conv_blocks(conv);
  const std::int64_t end = blocks * (part + 1) / conv.parts;
  const std::int64_t block_elements = conv.steps * conv.depth * kBlockChannels;
  const std::int64_t pairs = (band.tiles + 1) / 2;
  // The products of a run prefetch the weights of the next run, a part of each block with each
  // pair. If there is no next run, they prefetch the residual of the next pair.
  const std::int64_t next_lines = (conv.depth + pairs - 1) / pairs;
  const bool may_store = !conv.is_dst_f32 && activates(conv.activation) != kInMemory;
  alignas(64) float sums[kBlockSums];
  for (std::int64_t run = blocks * part / conv.parts; run < end; run += conv.block_run) {
    const std::int64_t run_end = std::min(run + conv.block_run, end);
    Tiles tiles(conv, band, copy);
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const std::int64_t pixel = tiles.pixel();
      Product product;
      product.is_pair = 2 * pair + 1 < band.tiles;
      product.tiles[0] = tiles.next();
      product.tiles[1] = product.is_pair ? tiles.next() : product.tiles[0];
      const std::int64_t prefetched = pair * next_lines;
      const auto& [first, second] = product.tiles;
      const bool is_dense = first.skip + first.count == conv.tile_rows && second.skip == 0;
      const bool is_full = first.count == conv.tile_rows && second.count == conv.tile_rows;
      for (std::int64_t block = run; block < run_end; ++block) {
        const std::int64_t channel = block * kBlockChannels, next = block + run_end - run;
        product.is_wide = conv.k - channel > kBlockChannels / 2;
        product.bias = conv.bias + channel;
        product.weights = conv.weights + block * block_elements;
        if (next < blocks) {  // perhaps of the next task
          product.next_lines = std::clamp<std::int64_t>(conv.depth - prefetched, 0, next_lines);
          product.next =
              conv.weights + next * block_elements + prefetched * conv.steps * kBlockChannels;
        } else if (conv.residual != nullptr && !conv.is_dst_f32 && pair + 1 < pairs) {
          product.next_lines = (kBlockChannels + conv.steps - 1) / conv.steps;
          product.next = static_cast<const Bf16*>(conv.residual) + tiles.pixel() * conv.k +
                         (block - run) * kBlockChannels * kBlockChannels;
        } else {
          product.next = nullptr;
          product.next_lines = 0;
        }
        product.dst = may_store && is_full && conv.k - channel >= kBlockChannels
                          ? static_cast<Bf16*>(conv.dst) + pixel * conv.k + channel
                          : nullptr;
        if (multiply(product, sums)) continue;
        Results results = {sums + first.skip * kBlockChannels, first.count,
                           pixel * conv.k + channel,
                           std::min<std::int64_t>(kBlockChannels, conv.k - channel)};
        if (is_dense) {
          results.rows += product.is_pair ? second.count : 0;
        } else if (product.is_pair) {
          store_results(conv, results);
          results.sums = sums + (conv.tile_rows + second.skip) * kBlockChannels;
          results.at += first.count * conv.k;
          results.rows = second.count;
        }
        store_results(conv, results);
      }
    }
  }
}

/// Runs a task of bf16_conv with the same arguments.
template <class Multiply>
inline void run_task(const Bf16Conv& conv, std::int64_t task, void* scratch,
                     std::int64_t& copied_band, const Multiply& multiply) {
  const std::int64_t number = task / conv.parts;
  const Band band = band_of(conv, number);
  auto* const copy = static_cast<Bf16*>(scratch);
  if (conv.source != Bf16Conv::kImage && copied_band != number) {
    conv.is_src_f32 ? copy_band<float>(conv, band, copy) : copy_band<Bf16>(conv, band, copy);
    copied_band = number;
  }
  run_products(conv, task % conv.parts, band, copy, multiply);
}

}  // namespace
}  // namespace torchalgo::kernels

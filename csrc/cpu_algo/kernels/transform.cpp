// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/transform.h"

#include <cstring>
#include <utility>

#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

constexpr int kImageChannels = 3;  // of a model's input, so worth a loop of its own

constexpr std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

template <int size, int distance, int... lane>
constexpr auto low_lanes(std::integer_sequence<int, lane...>) {
  return std::integer_sequence<int, ((lane & distance) ? size + lane - distance : lane)...>();
}

template <int size, int distance, int... lane>
constexpr auto high_lanes(std::integer_sequence<int, lane...>) {
  return std::integer_sequence<int, ((lane & distance) ? size + lane : lane + distance)...>();
}

/// Transposes in log2(size) steps; each exchanges the off-diagonal squares of side `distance`.
template <int size, int distance = 1>
inline void transpose_rows(typename Lanes<size>::Floats (&rows)[size]) {
  if constexpr (distance < size) {
    constexpr auto kLane = std::make_integer_sequence<int, size>();
#pragma GCC unroll 16
    for (int i = 0; i < size; ++i) {
      if (i & distance) continue;
      const auto a = rows[i], b = rows[i + distance];
      rows[i] = shuffle<size>(a, b, low_lanes<size, distance>(kLane));
      rows[i + distance] = shuffle<size>(a, b, high_lanes<size, distance>(kLane));
    }
    transpose_rows<size, distance * 2>(rows);
  }
}

/// Writes dst[j * dst_step + i] = src[i * src_step + j] for i < rows and j < kNativeLanes. The
/// lanes of dst from `rows` on become zero.
template <class Src, class Dst>
inline void transpose_tile(const Src* src, std::int64_t src_step, std::int64_t rows, Dst* dst,
                           std::int64_t dst_step) {
  constexpr int kSize = kNativeLanes;
  Native tile[kSize] = {};
#pragma GCC unroll 16
  for (int i = 0; i < kSize; ++i) {
    if (i < rows) tile[i] = load_native(src + i * src_step);
  }
  transpose_rows<kSize>(tile);
#pragma GCC unroll 16
  for (int i = 0; i < kSize; ++i) store_native(tile[i], dst + i * dst_step);
}

inline void assign(float* to, float x) { *to = x; }
/// Rounds to nearest even. A NaN stays a NaN.
inline void assign(Bf16* to, float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  *to = static_cast<Bf16>(x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void assign(float* to, Bf16 x) {
  const std::uint32_t bits = std::uint32_t{x} << 16;
  std::memcpy(to, &bits, sizeof bits);
}

/// The work of one task: `pixels` pixels of `channels` valid channels of the block at src and dst.
template <class Src, class Dst>
struct Tile {
  const Src* src;
  Dst* dst;
  std::int64_t channels, pixels;
  std::int64_t padded;  // channels of the block in dst
};

/// Interleaves the kImageChannels channels of `pixels` pixels.
template <class Src, class Dst>
inline void gather_image(const Src* src, std::int64_t plane, std::int64_t pixels, Dst* dst,
                         std::int64_t step) {
  Dst lanes[kImageChannels][kNativeLanes];
  std::int64_t x = 0;
  for (; x + kNativeLanes <= pixels; x += kNativeLanes) {
    for (int i = 0; i < kImageChannels; ++i)
      store_native(load_native(src + i * plane + x), lanes[i]);
    for (int j = 0; j < kNativeLanes; ++j) {
      for (int i = 0; i < kImageChannels; ++i) dst[(x + j) * step + i] = lanes[i][j];
    }
  }
  for (; x < pixels; ++x) {
    for (int i = 0; i < kImageChannels; ++i) assign(dst + x * step + i, src[i * plane + x]);
  }
}

/// Copies a tile from planar memory to memory with adjacent channels.
template <class Src, class Dst>
inline void gather_channels(const Transform& transform, const Tile<Src, Dst>& tile) {
  constexpr int kSize = kNativeLanes;
  const std::int64_t plane = transform.src_view.block_stride, step = transform.dst_view.pixel;
  for (std::int64_t c = 0; c < tile.padded; c += kSize) {
    const std::int64_t rows = min(tile.channels - c, kSize);
    const std::int64_t written = min(tile.padded - c, kSize);
    const Src* src = tile.src + c * plane;
    Dst* dst = tile.dst + c;
    if (written == kImageChannels && rows == kImageChannels) {
      gather_image(src, plane, tile.pixels, dst, step);
      continue;
    }
    std::int64_t x = 0;
    if (written == kSize) {
      for (; x + kSize <= tile.pixels; x += kSize)
        transpose_tile(src + x, plane, rows, dst + x * step, step);
    }
    for (; x < tile.pixels; ++x) {
      for (std::int64_t i = 0; i < written; ++i) {
        if (i < rows) {
          assign(dst + x * step + i, src[i * plane + x]);
        } else {
          dst[x * step + i] = 0;
        }
      }
    }
  }
}

/// Copies a tile from memory with adjacent channels to planar memory.
template <class Src, class Dst>
inline void scatter_channels(const Transform& transform, const Tile<Src, Dst>& tile) {
  constexpr int kSize = kNativeLanes;
  const std::int64_t plane = transform.dst_view.block_stride, step = transform.src_view.pixel;
  for (std::int64_t c = 0; c < tile.channels; c += kSize) {
    const std::int64_t channels = min(tile.channels - c, kSize);
    const Src* src = tile.src + c;
    Dst* dst = tile.dst + c * plane;
    std::int64_t x = 0;
    if (channels == kSize) {
      for (; x + kSize <= tile.pixels; x += kSize)
        transpose_tile(src + x * step, step, kSize, dst + x, plane);
    }
    if (channels == kImageChannels) {
      for (; x < tile.pixels; ++x) {
        for (int i = 0; i < kImageChannels; ++i) assign(dst + i * plane + x, src[x * step + i]);
      }
    }
    for (std::int64_t i = 0; i < channels; ++i) {
      for (std::int64_t y = x; y < tile.pixels; ++y) assign(dst + i * plane + y, src[y * step + i]);
    }
  }
}

/// Copies a tile between two layouts with adjacent channels.
template <class Src, class Dst>
inline void copy_channels(const Transform& transform, const Tile<Src, Dst>& tile) {
  const Src* src = tile.src;
  Dst* dst = tile.dst;
  for (std::int64_t x = 0; x < tile.pixels; ++x) {
    if (tile.channels == kTransformChannels) {
      for (int i = 0; i < kTransformChannels; i += kNativeLanes)
        store_native(load_native(src + i), dst + i);
    } else {
      if (tile.padded == kTransformChannels) std::memset(dst, 0, kTransformChannels * sizeof(Dst));
      for (std::int64_t i = 0; i < tile.channels; ++i) assign(dst + i, src[i]);
    }
    src += transform.src_view.pixel;
    dst += transform.dst_view.pixel;
  }
}

template <class Src, class Dst>
inline void run_tile(const Transform& transform, const Tile<Src, Dst>& tile) {
  if (transform.src_view.pixel == 1 && transform.src_view.block == 1) {
    gather_channels(transform, tile);
  } else if (transform.dst_view.pixel == 1 && transform.dst_view.block == 1) {
    scatter_channels(transform, tile);
  } else {
    copy_channels(transform, tile);
  }
}

inline std::int64_t offset_of(const TensorView& view, std::int64_t image, std::int64_t channel,
                              std::int64_t pixel) {
  return image * view.image + channel / view.block * view.block_stride + pixel * view.pixel +
         channel % view.block * view.channel;
}

template <class Src, class Dst>
void run_tasks(const Transform& transform, std::int64_t begin, std::int64_t end) {
  const auto* const src = static_cast<const Src*>(transform.src);
  auto* const dst = static_cast<Dst*>(transform.dst);
  const std::int64_t groups =
      (transform.padded_channels + kTransformChannels - 1) / kTransformChannels;
  const std::int64_t ranges = (transform.pixels + kTransformPixels - 1) / kTransformPixels;
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t image = task / (groups * ranges);
    const std::int64_t place = task % (groups * ranges);
    const std::int64_t group = transform.channels_inner ? place % groups : place / ranges;
    const std::int64_t range = transform.channels_inner ? place / groups : place % ranges;
    const std::int64_t channel = group * kTransformChannels, pixel = range * kTransformPixels;
    const std::int64_t valid = min(kTransformChannels, transform.channels - channel);
    const Tile<Src, Dst> tile = {src + offset_of(transform.src_view, image, channel, pixel),
                                 dst + offset_of(transform.dst_view, image, channel, pixel),
                                 valid > 0 ? valid : 0,
                                 min(kTransformPixels, transform.pixels - pixel),
                                 min(kTransformChannels, transform.padded_channels - channel)};
    run_tile(transform, tile);
  }
}

}  // namespace

void run_transform(const Transform& transform, std::int64_t begin, std::int64_t end) {
  if (transform.src_is_bf16) return run_tasks<Bf16, float>(transform, begin, end);
  if (transform.dst_is_bf16) return run_tasks<float, Bf16>(transform, begin, end);
  run_tasks<float, float>(transform, begin, end);
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

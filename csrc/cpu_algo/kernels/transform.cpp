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

/// Writes dst[j * dst_step + i] = src[i * src_step + j] for i < rows and j < size. The lanes of dst
/// from `rows` to `size` become zero.
template <int size>
inline void transpose_tile(const float* src, std::int64_t src_step, std::int64_t rows, float* dst,
                           std::int64_t dst_step) {
  typename Lanes<size>::Floats tile[size] = {};
#pragma GCC unroll 16
  for (int i = 0; i < size; ++i) {
    if (i < rows) std::memcpy(&tile[i], src + i * src_step, sizeof(tile[i]));
  }
  transpose_rows<size>(tile);
#pragma GCC unroll 16
  for (int i = 0; i < size; ++i) std::memcpy(dst + i * dst_step, &tile[i], sizeof(tile[i]));
}

/// The work of one task: `pixels` pixels of `channels` valid channels of the block at src and dst.
struct Tile {
  const float* src;
  float* dst;
  std::int64_t channels, pixels;
  std::int64_t padded;  // channels of the block in dst
};

/// Copies a tile from planar memory to memory with adjacent channels.
template <int size>
inline void gather_channels(const Transform& transform, const Tile& tile) {
  const std::int64_t plane = transform.src_view.block_stride, step = transform.dst_view.pixel;
  for (std::int64_t c = 0; c < tile.padded; c += size) {
    const std::int64_t rows = min(tile.channels - c, size);
    const std::int64_t written = min(tile.padded - c, size);
    const float* src = tile.src + c * plane;
    float* dst = tile.dst + c;
    std::int64_t x = 0;
    if (written == size) {
      for (; x + size <= tile.pixels; x += size) {
        transpose_tile<size>(src + x, plane, rows, dst + x * step, step);
      }
    }
    if (written == kImageChannels && rows == kImageChannels) {
      for (; x < tile.pixels; ++x) {
        for (int i = 0; i < kImageChannels; ++i) dst[x * step + i] = src[i * plane + x];
      }
    }
    for (; x < tile.pixels; ++x) {
      for (std::int64_t i = 0; i < written; ++i) {
        dst[x * step + i] = i < rows ? src[i * plane + x] : 0.0F;
      }
    }
  }
}

/// Copies a tile from memory with adjacent channels to planar memory.
template <int size>
inline void scatter_channels(const Transform& transform, const Tile& tile) {
  const std::int64_t plane = transform.dst_view.block_stride, step = transform.src_view.pixel;
  for (std::int64_t c = 0; c < tile.channels; c += size) {
    const std::int64_t channels = min(tile.channels - c, size);
    const float* src = tile.src + c;
    float* dst = tile.dst + c * plane;
    std::int64_t x = 0;
    if (channels == size) {
      for (; x + size <= tile.pixels; x += size) {
        transpose_tile<size>(src + x * step, step, size, dst + x, plane);
      }
    }
    if (channels == kImageChannels) {
      for (; x < tile.pixels; ++x) {
        for (int i = 0; i < kImageChannels; ++i) dst[i * plane + x] = src[x * step + i];
      }
    }
    for (std::int64_t i = 0; i < channels; ++i) {
      for (std::int64_t y = x; y < tile.pixels; ++y) dst[i * plane + y] = src[y * step + i];
    }
  }
}

/// Copies a tile between two layouts with adjacent channels.
inline void copy_channels(const Transform& transform, const Tile& tile) {
  const float* src = tile.src;
  float* dst = tile.dst;
  for (std::int64_t x = 0; x < tile.pixels; ++x) {
    if (tile.channels == kTransformChannels) {
      std::memcpy(dst, src, kTransformChannels * sizeof(float));
    } else {
      if (tile.padded == kTransformChannels)
        std::memset(dst, 0, kTransformChannels * sizeof(float));
      for (std::int64_t i = 0; i < tile.channels; ++i) dst[i] = src[i];
    }
    src += transform.src_view.pixel;
    dst += transform.dst_view.pixel;
  }
}

inline void run_tile(const Transform& transform, const Tile& tile) {
  if (transform.src_view.pixel == 1 && transform.src_view.block == 1) {
    gather_channels<kNativeLanes>(transform, tile);
  } else if (transform.dst_view.pixel == 1 && transform.dst_view.block == 1) {
    scatter_channels<kNativeLanes>(transform, tile);
  } else {
    copy_channels(transform, tile);
  }
}

inline std::int64_t offset_of(const TensorView& view, std::int64_t image, std::int64_t channel,
                              std::int64_t pixel) {
  return image * view.image + channel / view.block * view.block_stride + pixel * view.pixel +
         channel % view.block * view.channel;
}

}  // namespace

void run_transform(const Transform& transform, std::int64_t begin, std::int64_t end) {
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
    const Tile tile = {transform.src + offset_of(transform.src_view, image, channel, pixel),
                       transform.dst + offset_of(transform.dst_view, image, channel, pixel),
                       valid > 0 ? valid : 0, min(kTransformPixels, transform.pixels - pixel),
                       min(kTransformChannels, transform.padded_channels - channel)};
    run_tile(transform, tile);
  }
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

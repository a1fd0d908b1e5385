// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/pixel_shuffle.h"

#include <cstring>
#include <utility>

#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kPixels = 64;  // of a row at a time, so that their channels stay in L1 or L2

constexpr std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

inline std::int64_t offset_of(const ChannelStrides& strides, std::int64_t pixel, std::int64_t c) {
  return pixel * strides.pixel + c / kBlock * strides.block + c % kBlock;
}

/// Separates the elements of a and b at even positions from those at odd ones.
template <class V, int... lane>
[[gnu::always_inline]] inline void separate(V& a, V& b, std::integer_sequence<int, lane...>) {
  const V even = __builtin_shufflevector(a, b, (2 * lane)...);
  const V odd = __builtin_shufflevector(a, b, (2 * lane + 1)...);
  a = even;
  b = odd;
}

/// Reads the vectors as one sequence, and writes its elements at k, k + ways, ... to vector k.
template <int ways, class V>
[[gnu::always_inline]] inline void deinterleave(V (&vectors)[ways]) {
  if constexpr (ways > 1) {
    V even[ways / 2], odd[ways / 2];
#pragma GCC unroll 16
    for (int i = 0; i < ways / 2; ++i) {
      even[i] = vectors[2 * i];
      odd[i] = vectors[2 * i + 1];
      separate(even[i], odd[i], std::make_integer_sequence<int, kNativeLanes>());
    }
    deinterleave(even);
    deinterleave(odd);
#pragma GCC unroll 16
    for (int i = 0; i < ways / 2; ++i) {
      vectors[2 * i] = even[i];
      vectors[2 * i + 1] = odd[i];
    }
  }
}

/// Writes channels [first, first + kNativeLanes) of the pixels of dst that pixel x of the row
/// makes. `factor` is 0 if it is not known when compiling.
template <int factor, class Element>
[[gnu::always_inline]] inline void shuffle_pixel(const PixelShuffle& shuffle, const Element* src,
                                                 Element* dst, std::int64_t x, std::int64_t first) {
  const std::int64_t f = factor > 0 ? factor : shuffle.factor, ways = f * f;
  const auto target = [&](std::int64_t k) {
    return dst + offset_of(shuffle.to, (k / f * shuffle.w + x) * f + k % f, first);
  };
  if constexpr (factor == 2 || factor == 4) {
    if (first + kNativeLanes <= shuffle.channels) {
      typedef Element Vector __attribute__((vector_size(kNativeLanes * sizeof(Element))));
      Vector vectors[factor * factor];
#pragma GCC unroll 16
      for (int i = 0; i < factor * factor; ++i) {
        const std::int64_t c = first * ways + i * kNativeLanes;
        std::memcpy(&vectors[i], src + offset_of(shuffle.from, x, c), sizeof(Vector));
      }
      deinterleave(vectors);
#pragma GCC unroll 16
      for (int k = 0; k < factor * factor; ++k) std::memcpy(target(k), &vectors[k], sizeof(Vector));
      return;
    }
  }
  const std::int64_t written = min(kNativeLanes, shuffle.padded - first);
  for (std::int64_t k = 0; k < ways; ++k) {
    Element* to = target(k);
    for (std::int64_t i = 0; i < written; ++i) {
      const bool is_pad = first + i >= shuffle.channels;
      to[i] = is_pad ? Element{0} : src[offset_of(shuffle.from, x, (first + i) * ways + k)];
    }
  }
}

template <int factor, class Element>
inline void shuffle_row(const PixelShuffle& shuffle, const Element* src, Element* dst) {
  for (std::int64_t begin = 0; begin < shuffle.w; begin += kPixels) {
    const std::int64_t end = min(begin + kPixels, shuffle.w);
    for (std::int64_t first = 0; first < shuffle.padded; first += kNativeLanes) {
      for (std::int64_t x = begin; x < end; ++x) {
        shuffle_pixel<factor>(shuffle, src, dst, x, first);
      }
    }
  }
}

/// Writes `factor` rows of each channel of dst in nchw. `dst` is the first row of channel 0.
template <int factor>
inline void shuffle_row_to_planes(const PixelShuffle& shuffle, const float* src, float* dst) {
  const std::int64_t f = factor > 0 ? factor : shuffle.factor, w = shuffle.w;
  for (std::int64_t begin = 0; begin < w; begin += kPixels) {
    const std::int64_t end = min(begin + kPixels, w);
    for (std::int64_t row = 0; row < shuffle.channels * f; ++row) {
      float* to = dst + (row / f * shuffle.h * f + row % f) * w * f;
      for (std::int64_t x = begin; x < end; ++x) {
        if constexpr (factor == 2 || factor == 4) {  // these lie in one block
          std::memcpy(to + x * f, src + offset_of(shuffle.from, x, row * f), factor * sizeof *to);
        } else {
          for (std::int64_t j = 0; j < f; ++j)
            to[x * f + j] = src[offset_of(shuffle.from, x, row * f + j)];
        }
      }
    }
  }
}

/// Calls run(src, image, y) for rows [begin, end). `src` is the row.
template <class Element, class Run>
inline void for_each_row(const PixelShuffle& shuffle, std::int64_t begin, std::int64_t end,
                         const Run& run) {
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t image = row / shuffle.h, y = row % shuffle.h;
    run(of<Element>(shuffle.src) + image * shuffle.from.image + y * shuffle.w * shuffle.from.pixel,
        image, y);
  }
}

template <int factor, class Element>
void shuffle_rows(const PixelShuffle& shuffle, std::int64_t begin, std::int64_t end) {
  const std::int64_t pixels = shuffle.w * shuffle.factor * shuffle.factor;  // that a row makes
  for_each_row<Element>(
      shuffle, begin, end, [&](const Element* src, std::int64_t image, std::int64_t y) {
        shuffle_row<factor>(
            shuffle, src,
            of<Element>(shuffle.dst) + image * shuffle.to.image + y * pixels * shuffle.to.pixel);
      });
}

template <int factor>
void shuffle_rows_to_planes(const PixelShuffle& shuffle, std::int64_t begin, std::int64_t end) {
  const std::int64_t pixels = shuffle.w * shuffle.factor * shuffle.factor;
  for_each_row<float>(
      shuffle, begin, end, [&](const float* src, std::int64_t image, std::int64_t y) {
        shuffle_row_to_planes<factor>(
            shuffle, src, shuffle.dst + (image * shuffle.channels * shuffle.h + y) * pixels);
      });
}

template <class Element>
void shuffle_rows_of(const PixelShuffle& shuffle, std::int64_t begin, std::int64_t end) {
  if (shuffle.factor == 2) return shuffle_rows<2, Element>(shuffle, begin, end);
  if (shuffle.factor == 3) return shuffle_rows<3, Element>(shuffle, begin, end);
  if (shuffle.factor == 4) return shuffle_rows<4, Element>(shuffle, begin, end);
  shuffle_rows<0, Element>(shuffle, begin, end);
}

}  // namespace

void run_pixel_shuffle(const PixelShuffle& shuffle, std::int64_t begin, std::int64_t end) {
  shuffle_rows_of<float>(shuffle, begin, end);
}

void run_pixel_shuffle_bf16(const PixelShuffle& shuffle, std::int64_t begin, std::int64_t end) {
  shuffle_rows_of<Bf16>(shuffle, begin, end);
}

void run_pixel_shuffle_planes(const PixelShuffle& shuffle, std::int64_t begin, std::int64_t end) {
  if (shuffle.factor == 2) return shuffle_rows_to_planes<2>(shuffle, begin, end);
  if (shuffle.factor == 3) return shuffle_rows_to_planes<3>(shuffle, begin, end);
  if (shuffle.factor == 4) return shuffle_rows_to_planes<4>(shuffle, begin, end);
  shuffle_rows_to_planes<0>(shuffle, begin, end);
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/interleave.h"

#include <cstring>

#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

constexpr std::int64_t kBlock = 16;

// Interleaves kLanes values of `a` with kLanes values of `b` into 2 * kLanes results.
inline void interleave_vectors(const float* a, const float* b, float* dst) {
  const auto [low, high] = interleave2(Vec::loadu(a), Vec::loadu(b));
  low.store(dst);
  high.store(dst + kLanes);
}

/// A pair of results is one integer, so that the loop is vectorized.
inline void interleave_two(const Bf16* a, const Bf16* b, Bf16* dst, std::int64_t channels) {
  for (std::int64_t i = 0; i < channels; ++i) {
    const std::uint32_t pair = a[i] | static_cast<std::uint32_t>(b[i]) << 16;
    std::memcpy(dst + 2 * i, &pair, sizeof pair);
  }
}

inline void interleave_two(const float* a, const float* b, float* dst, std::int64_t channels) {
  if (channels < kLanes) {
    for (std::int64_t i = 0; i < channels; ++i) {
      dst[2 * i] = a[i];
      dst[2 * i + 1] = b[i];
    }
    return;
  }
  std::int64_t i = 0;
  for (; i + kLanes <= channels; i += kLanes) interleave_vectors(a + i, b + i, dst + 2 * i);
  if (i == channels) return;
  i = channels - kLanes;  // the last vector overlaps the one before it
  interleave_vectors(a + i, b + i, dst + 2 * i);
}

template <class Element>
inline void interleave_pixels(const Interleave& interleave, std::int64_t begin, std::int64_t end) {
  const std::int64_t count = interleave.count, channels = interleave.channels;
  const auto source = [&](std::int64_t j, std::int64_t pixel) {
    return of<Element>(interleave.sources[j]) + pixel * interleave.pitch;
  };
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    Element* dst = of<Element>(interleave.dst) + pixel * count * channels;
    if (count == 2) {
      interleave_two(source(0, pixel), source(1, pixel), dst, channels);
      continue;
    }
    for (std::int64_t j = 0; j < count; ++j) {
      const Element* src = source(j, pixel);
      for (std::int64_t i = 0; i < channels; ++i) dst[i * count + j] = src[i];
    }
  }
}

}  // namespace

void run_interleave_pixels(const Interleave& interleave, std::int64_t begin, std::int64_t end) {
  interleave_pixels<float>(interleave, begin, end);
}

void run_interleave_pixels_bf16(const Interleave& interleave, std::int64_t begin,
                                std::int64_t end) {
  interleave_pixels<Bf16>(interleave, begin, end);
}

void run_interleave_blocks(const Interleave& interleave, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kHalf = kBlock / 2;
  const std::int64_t blocks = (2 * interleave.channels + kBlock - 1) / kBlock;  // of dst
  for (std::int64_t block = begin; block < end; ++block) {
    const std::int64_t image = block / blocks, channel = block % blocks * kHalf;
    const std::int64_t at =
        (image * interleave.blocks + channel / kBlock) * interleave.pixels * kBlock +
        channel % kBlock;
    const float* a = interleave.sources[0] + at;
    const float* b = interleave.sources[1] + at;
    float* dst = interleave.dst + block * interleave.pixels * kBlock;
    for (std::int64_t pixel = 0; pixel < interleave.pixels; ++pixel) {
      if constexpr (kLanes > kHalf) {
        // Only the first 8 of the 16 lanes are read, because the others may belong to the next
        // pixel.
        const Vec first = Vec::loadu(a + pixel * kBlock, kHalf);
        const Vec second = Vec::loadu(b + pixel * kBlock, kHalf);
        interleave2(first, second).first.store(dst + pixel * kBlock);
      } else {
        for (std::int64_t i = 0; i < kHalf; i += kLanes) {
          interleave_vectors(a + pixel * kBlock + i, b + pixel * kBlock + i,
                             dst + pixel * kBlock + 2 * i);
        }
      }
    }
  }
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

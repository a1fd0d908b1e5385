// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/interleave.h"

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

}  // namespace

void run_interleave_pixels(const Interleave& interleave, std::int64_t begin, std::int64_t end) {
  const std::int64_t count = interleave.count, channels = interleave.channels;
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const std::int64_t at = pixel * interleave.pitch;
    float* dst = interleave.dst + pixel * count * channels;
    if (count == 2) {
      interleave_two(interleave.sources[0] + at, interleave.sources[1] + at, dst, channels);
      continue;
    }
    for (std::int64_t j = 0; j < count; ++j) {
      const float* src = interleave.sources[j] + at;
      for (std::int64_t i = 0; i < channels; ++i) dst[i * count + j] = src[i];
    }
  }
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

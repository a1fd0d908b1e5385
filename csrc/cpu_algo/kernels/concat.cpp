// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/concat.h"

#include <cstring>

#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

constexpr std::int64_t kBlock = 16;

constexpr std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Copies count % (2 * step) elements, for a power of two `step`.
template <int step, class Element>
inline void copy_rest(const Element* src, Element* dst, std::int64_t count) {
  if ((count & step) != 0) {
    std::memcpy(dst, src, step * sizeof(Element));
    src += step;
    dst += step;
  }
  if constexpr (step > 1) copy_rest<step / 2>(src, dst, count);
}

template <class Element>
inline void copy_elements(const Element* src, Element* dst, std::int64_t count) {
  constexpr int kStep = kLanes * sizeof(float) / sizeof(Element);
  if (count >= std::int64_t{1024 / sizeof(Element)}) {
    std::memcpy(dst, src, static_cast<std::size_t>(count) * sizeof(Element));
    return;
  }
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep) std::memcpy(dst + i, src + i, kStep * sizeof(Element));
  copy_rest<kStep / 2>(src + i, dst + i, count);
}

inline void copy_block(const float* src, float* dst) {
  for (std::int64_t i = 0; i < kBlock; i += kLanes) Vec::loadu(src + i).store(dst + i);
}

/// The lanes of one dst block that come from one block of one source, or that are zero.
struct Segment {
  const float* src;  // its first lane in the first pixel; nullptr: zeros
  std::int64_t lane, count;
};

/// Finds the segments of block `block` of image `image` in dst, in order of lanes. There is at most
/// one per lane.
inline int find_segments(const Concat& concat, std::int64_t image, std::int64_t block,
                         Segment (&segments)[kBlock]) {
  int count = 0;
  std::int64_t channel = block * kBlock;  // of dst, the first that no segment holds yet
  const std::int64_t last = channel + kBlock;
  std::int64_t base = 0;  // dst's channel at which the source starts
  for (std::int64_t s = 0; s < concat.source_count && channel < last; ++s) {
    const ConcatSource& source = concat.sources[s];
    while (channel < last && channel < base + source.channels) {
      const std::int64_t own = source.first + channel - base;
      const std::int64_t lanes =
          min(min(kBlock - own % kBlock, base + source.channels - channel), last - channel);
      const float* data = source.data +
                          (image * source.blocks + own / kBlock) * concat.pixels * kBlock +
                          own % kBlock;
      segments[count++] = {data, channel % kBlock, lanes};
      channel += lanes;
    }
    base += source.channels;
  }
  if (channel < last) segments[count++] = {nullptr, channel % kBlock, last - channel};
  return count;
}

template <class Element>
inline void copy_runs(const Concat& concat, std::int64_t begin, std::int64_t end) {
  auto* const dst = of<Element>(concat.dst);
  std::int64_t row = begin / concat.row;
  std::int64_t skip = begin % concat.row;  // elements of this row that lie before `begin`
  for (; begin < end; ++row, skip = 0) {
    for (std::int64_t s = 0; s < concat.source_count && begin < end; ++s) {
      const ConcatSource& source = concat.sources[s];
      if (skip >= source.run) {
        skip -= source.run;
        continue;
      }
      const std::int64_t count = min(source.run - skip, end - begin);
      const auto* const src = of<Element>(source.data);
      copy_elements(src + row * source.pitch + skip, dst + begin, count);
      begin += count;
      skip = 0;
    }
  }
}

}  // namespace

void run_concat_runs(const Concat& concat, std::int64_t begin, std::int64_t end) {
  copy_runs<float>(concat, begin, end);
}

void run_concat_runs_bf16(const Concat& concat, std::int64_t begin, std::int64_t end) {
  copy_runs<Bf16>(concat, begin, end);
}

void run_concat_blocks(const Concat& concat, std::int64_t begin, std::int64_t end) {
  const std::int64_t blocks = (concat.channels + kBlock - 1) / kBlock;
  const float zeros[kBlock] = {};
  for (std::int64_t block = begin; block < end; ++block) {
    Segment segments[kBlock];
    const int count = find_segments(concat, block / blocks, block % blocks, segments);
    float* dst = concat.dst + block * concat.pixels * kBlock;
    // Each copy moves 16 lanes. Surplus lanes are overwritten by the following segments and pixels.
    // Only the last pixel needs exact copies, because another block starts after it.
    for (std::int64_t pixel = 0; pixel + 1 < concat.pixels; ++pixel, dst += kBlock) {
      for (int s = 0; s < count; ++s) {
        const Segment& segment = segments[s];
        copy_block(segment.src != nullptr ? segment.src + pixel * kBlock : zeros,
                   dst + segment.lane);
      }
    }
    for (int s = 0; s < count; ++s) {
      const Segment& segment = segments[s];
      const float* src =
          segment.src != nullptr ? segment.src + (concat.pixels - 1) * kBlock : zeros;
      for (std::int64_t i = 0; i < segment.count; ++i) dst[segment.lane + i] = src[i];
    }
  }
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

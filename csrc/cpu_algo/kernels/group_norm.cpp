// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/group_norm.h"

#include <algorithm>
#include <cmath>

#include "cpu_algo/kernels/epilogue.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

constexpr std::int64_t kChunk = 2048;  // floats that stay in the L1 cache for their activation

// Sums over pixels, for each lane of a strip of channels.
struct Sums {
  alignas(Native) float pivot[kGroupNormStrip];        // a number near the lane's mean
  alignas(Native) float differences[kGroupNormStrip];  // of the numbers from the pivot
  alignas(Native) float squares[kGroupNormStrip];      // of these differences
};

// Adds up `width` adjacent vectors of each pixel, or the first `lanes` lanes of one vector. The
// sums go to the lanes of `found` from `first` on.
//
// The variance is found from sums of differences from a pivot, the mean of a few pixels. These sums
// need one pass, and the rounding errors of squares of large numbers do not enter them.
template <int width, bool is_whole, class Element>
inline void sum_pixels(const Element* src, std::int64_t step, std::int64_t pixels,
                       std::int64_t lanes, std::int64_t first, Sums& found) {
  constexpr int kRows = 4 / width;  // independent sums, which hide the latency of an addition
  constexpr std::int64_t kMostSamples = 8;
  Vec pivot[width], differences[kRows][width], squares[kRows][width];
  for (int i = 0; i < width; ++i) {
    pivot[i] = Vec(0.0F);
    for (int row = 0; row < kRows; ++row) differences[row][i] = squares[row][i] = Vec(0.0F);
  }
  const auto load = [lanes](const Element* at, int i) {
    return is_whole ? Vec::loadu(at + i * kLanes) : Vec::loadu(at, lanes);
  };
  const std::int64_t samples = std::min(kMostSamples, pixels);
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const Element* const at = src + sample * pixels / samples * step;
    for (int i = 0; i < width; ++i) pivot[i] = pivot[i] + load(at, i);
  }
  const Vec share(1.0F / static_cast<float>(samples));
  for (int i = 0; i < width; ++i) pivot[i] = pivot[i] * share;
  const auto add = [&](const Element* at, int row) {
    for (int i = 0; i < width; ++i) {
      const Vec difference = load(at, i) - pivot[i];
      differences[row][i] = differences[row][i] + difference;
      squares[row][i] = fmadd(difference, difference, squares[row][i]);
    }
  };
  std::int64_t pixel = 0;
  for (; pixel + kRows <= pixels; pixel += kRows, src += kRows * step) {
    for (int row = 0; row < kRows; ++row) add(src + row * step, row);
  }
  for (; pixel < pixels; ++pixel, src += step) add(src, 0);
  for (int i = 0; i < width; ++i) {
    for (int row = 1; row < kRows; ++row) {
      differences[0][i] = differences[0][i] + differences[row][i];
      squares[0][i] = squares[0][i] + squares[row][i];
    }
    pivot[i].store(found.pivot + first + i * kLanes);
    differences[0][i].store(found.differences + first + i * kLanes);
    squares[0][i].store(found.squares + first + i * kLanes);
  }
}

// Adds up a strip of `lanes` channels.
template <class Element>
inline void sum_strip(const Element* src, std::int64_t step, std::int64_t pixels,
                      std::int64_t lanes, Sums& found) {
  std::int64_t lane = 0;
  for (; lane + 4 * kLanes <= lanes; lane += 4 * kLanes)
    sum_pixels<4, true>(src + lane, step, pixels, 0, lane, found);
  for (; lane + 2 * kLanes <= lanes; lane += 2 * kLanes)
    sum_pixels<2, true>(src + lane, step, pixels, 0, lane, found);
  for (; lane + kLanes <= lanes; lane += kLanes)
    sum_pixels<1, true>(src + lane, step, pixels, 0, lane, found);
  if (lane < lanes) sum_pixels<1, false>(src + lane, step, pixels, lanes - lane, lane, found);
}

inline Moments moments_of(const Sums& sums, std::int64_t lane, std::int64_t count) {
  const double differences = sums.differences[lane];
  const double rest = differences / static_cast<double>(count);
  return {sums.pivot[lane] + rest, sums.squares[lane] - differences * rest};
}

// Returns the moments of `count` adjacent numbers. Whole vectors count as pixels of kLanes
// channels.
template <class Element>
inline Moments moments_of_run(const Element* src, std::int64_t count) {
  const std::int64_t vectors = count / kLanes, rest = count % kLanes;
  const Element* const tail = src + vectors * kLanes;
  Moments of_lane[kLanes];
  double sum = 0;
  if (vectors > 0) {
    Sums sums;
    sum_pixels<1, true>(src, kLanes, vectors, 0, 0, sums);
    for (int lane = 0; lane < kLanes; ++lane) {
      of_lane[lane] = moments_of(sums, lane, vectors);
      sum += of_lane[lane].mean;
    }
    sum *= static_cast<double>(vectors);
  }
  for (std::int64_t i = 0; i < rest; ++i) sum += to_float(tail[i]);
  Moments all = {sum / static_cast<double>(count), 0};
  for (int lane = 0; vectors > 0 && lane < kLanes; ++lane) {
    const double difference = of_lane[lane].mean - all.mean;
    all.squares += of_lane[lane].squares + static_cast<double>(vectors) * difference * difference;
  }
  for (std::int64_t i = 0; i < rest; ++i) {
    const double difference = to_float(tail[i]) - all.mean;
    all.squares += difference * difference;
  }
  return all;
}

// Calls visit(count, moments) for each part of the group's columns in an image; `count` numbers
// have these moments.
template <class Visit>
[[gnu::always_inline]] inline void for_each_part(const GroupNorm& call, std::int64_t image,
                                                 std::int64_t group, const Visit& visit) {
  const std::int64_t columns = columns_of(call), width = columns / call.groups;
  const std::int64_t size = column_size(call);
  for (std::int64_t part = 0; part < call.parts; ++part) {
    const std::int64_t count = std::min(call.part_size, size - part * call.part_size);
    const Moments* const at = call.moments + (image * call.parts + part) * columns + group * width;
    for (std::int64_t i = 0; i < width; ++i) visit(static_cast<double>(count), at[i]);
  }
}

// Writes the factors of the group's channels.
//
// A mean that is large compared with the differences does not fit a float. The float nearest to it
// is subtracted from src, which is nearly exact. Its rest goes into the shift.
inline void find_factors(const GroupNorm& call, std::int64_t image, std::int64_t group) {
  const std::int64_t padded = call.blocks * call.lanes, channels = call.channels / call.groups;
  const double share = 1.0 / static_cast<double>(channels * call.pixels);
  double sum = 0, squares = 0;
  for_each_part(call, image, group,
                [&](double count, const Moments& part) { sum += count * part.mean; });
  const double mean = sum * share;
  for_each_part(call, image, group, [&](double count, const Moments& part) {
    const double difference = part.mean - mean;
    squares += part.squares + count * (difference * difference);
  });
  double variance = squares * share;
  variance = variance < 0 ? 0 : variance;  // rounding may make it negative; a NaN stays a NaN
  const double factor = 1.0 / std::sqrt(variance + call.epsilon);
  const float near = static_cast<float>(mean);
  const double rest = mean - static_cast<double>(near);
  float* const to = call.factors + image * 3 * padded;
  for (std::int64_t c = group * channels; c < (group + 1) * channels; ++c) {
    const double scale = factor * static_cast<double>(call.scale[c]);
    to[c] = near;
    to[padded + c] = static_cast<float>(scale);
    to[2 * padded + c] = static_cast<float>(static_cast<double>(call.shift[c]) - rest * scale);
  }
  if (group + 1 < call.groups) return;
  for (std::int64_t c = call.channels; c < padded; ++c)
    to[c] = to[padded + c] = to[2 * padded + c] = 0;
}

// The factors of some channels, and the bounds of the activation if that is a clamp.
struct Factors {
  const float *mean, *factor, *shift;
  Vec low, high;

  [[gnu::always_inline]] Vec apply(const Vec& x, const Vec& mean_of_x, const Vec& factor_of_x,
                                   const Vec& shift_of_x) const {
    return apply_clamp(fmadd(x - mean_of_x, factor_of_x, shift_of_x), low, high);
  }
};

// Normalizes `count` adjacent numbers of one channel.
inline void normalize_plane(const float* src, float* dst, std::int64_t count,
                            const Factors& factors) {
  const Vec mean(*factors.mean), factor(*factors.factor), shift(*factors.shift);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const std::int64_t rest = std::min<std::int64_t>(kLanes, count - i);
    factors.apply(Vec::loadu(src + i, rest), mean, factor, shift).store(dst + i, rest);
  }
}

// Normalizes `pixels` pixels of a block of 16 channels.
inline void normalize_block(const float* src, float* dst, std::int64_t pixels,
                            const Factors& factors) {
  Vec mean[kBlockVectors], factor[kBlockVectors], shift[kBlockVectors];
  for (int i = 0; i < kBlockVectors; ++i) {
    mean[i] = Vec::loadu(factors.mean + i * kLanes);
    factor[i] = Vec::loadu(factors.factor + i * kLanes);
    shift[i] = Vec::loadu(factors.shift + i * kLanes);
  }
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel, src += kBlock, dst += kBlock) {
    for (int i = 0; i < kBlockVectors; ++i) {
      factors.apply(Vec::loadu(src + i * kLanes), mean[i], factor[i], shift[i])
          .store(dst + i * kLanes);
    }
  }
}

// Normalizes `pixels` pixels of `lanes` channels.
inline void normalize_pixels(const float* src, float* dst, std::int64_t pixels, std::int64_t lanes,
                             const Factors& factors) {
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel, src += lanes, dst += lanes) {
    for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
      const std::int64_t rest = std::min<std::int64_t>(kLanes, lanes - lane);
      factors
          .apply(Vec::loadu(src + lane, rest), Vec::loadu(factors.mean + lane, rest),
                 Vec::loadu(factors.factor + lane, rest), Vec::loadu(factors.shift + lane, rest))
          .store(dst + lane, rest);
    }
  }
}

template <class Element>
inline void measure(const GroupNorm& call, std::int64_t begin, std::int64_t end) {
  const Element* const src = of<Element>(call.src);
  const std::int64_t strips = strips_of(call), size = column_size(call);
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t part = task % call.parts, strip = task / call.parts % strips;
    const std::int64_t image = task / call.parts / strips, first = part * call.part_size;
    const std::int64_t count = std::min(call.part_size, size - first);
    Moments* const to = call.moments + (image * call.parts + part) * columns_of(call);
    if (call.lanes == 1) {
      to[strip] = moments_of_run(src + (image * strips + strip) * size + first, count);
      continue;
    }
    const bool is_blocked = strips == call.blocks;
    const std::int64_t width = is_blocked ? call.lanes : kGroupNormStrip;
    const std::int64_t channel = strip * width;
    const std::int64_t lanes =
        std::min(width, (is_blocked ? strips * width : call.lanes) - channel);
    const std::int64_t block = is_blocked ? strip : 0, lane = is_blocked ? 0 : channel;
    const std::int64_t pixel = (image * call.blocks + block) * call.pixels + first;
    Sums sums;
    sum_strip(src + pixel * call.lanes + lane, call.lanes, count, lanes, sums);
    for (std::int64_t i = 0; i < std::min(lanes, call.channels - channel); ++i)
      to[channel + i] = moments_of(sums, i, count);
  }
}

}  // namespace

void measure_groups(const GroupNorm& call, std::int64_t begin, std::int64_t end) {
  measure<float>(call, begin, end);
}

void measure_groups_bf16(const GroupNorm& call, std::int64_t begin, std::int64_t end) {
  measure<Bf16>(call, begin, end);
}

void find_group_factors(const GroupNorm& call, std::int64_t begin, std::int64_t end) {
  for (std::int64_t task = begin; task < end; ++task)
    find_factors(call, task / call.groups, task % call.groups);
}

void normalize_groups(const GroupNorm& call, std::int64_t begin, std::int64_t end) {
  const Clamp clamp = clamp_of(call.activation);
  const std::int64_t padded = call.blocks * call.lanes;
  const std::int64_t chunk = std::max<std::int64_t>(1, kChunk / call.lanes);
  while (begin < end) {
    const std::int64_t block = begin / call.pixels;
    const std::int64_t count = std::min({chunk, end - begin, (block + 1) * call.pixels - begin});
    const std::int64_t channel = block % call.blocks * call.lanes;
    const float* const of = call.factors + block / call.blocks * 3 * padded + channel;
    const Factors factors = {of, of + padded, of + 2 * padded, Vec(clamp.low), Vec(clamp.high)};
    const float* const src = call.src + begin * call.lanes;
    float* const dst = call.dst + begin * call.lanes;
    if (call.lanes == 1) {
      normalize_plane(src, dst, count, factors);
    } else if (call.lanes == kBlock) {
      normalize_block(src, dst, count, factors);
    } else {
      normalize_pixels(src, dst, count, call.lanes, factors);
    }
    if (!is_clamp(call.activation)) activate(dst, dst, count * call.lanes, call.activation);
    if (!keeps_zero(call.activation) && channel + call.lanes > call.channels)
      clear_lanes(dst, call.lanes, count, call.channels - channel);
    begin += count;
  }
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "cpu_algo/kernels/epilogue.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

// A task of add_up_gradients.
struct Part {
  const float *diff, *x, *mean;
  float *sums, *products;
  std::int64_t step, pixels;  // floats from a pixel to the next, and their number
};

// Adds up `width` adjacent vectors of each pixel, or the first `lanes` lanes of one vector, from
// the lane `first` of the strip on.
template <bool has_x, int width, bool is_whole>
inline void add_up_lanes(const Part& part, std::int64_t first, std::int64_t lanes) {
  constexpr int kRows = 4 / width;  // independent sums, which hide the latency of an addition
  Vec mean[width], sums[kRows][width], products[kRows][width];
  const auto load = [lanes](const float* at, int i) {
    return is_whole ? Vec::loadu(at + i * kLanes) : Vec::loadu(at, lanes);
  };
  for (int i = 0; i < width; ++i) {
    mean[i] = has_x ? load(part.mean + first, i) : Vec(0.0F);
    for (int row = 0; row < kRows; ++row) sums[row][i] = products[row][i] = Vec(0.0F);
  }
  const float* diff = part.diff + first;
  const float* x = has_x ? part.x + first : nullptr;
  const auto add = [&](std::int64_t offset, int row) {
    for (int i = 0; i < width; ++i) {
      const Vec value = load(diff + offset, i);
      sums[row][i] = sums[row][i] + value;
      if constexpr (has_x) {
        products[row][i] = fmadd(value, load(x + offset, i) - mean[i], products[row][i]);
      }
    }
  };
  std::int64_t pixel = 0;
  for (; pixel + kRows <= part.pixels; pixel += kRows) {
    for (int row = 0; row < kRows; ++row) add((pixel + row) * part.step, row);
  }
  for (; pixel < part.pixels; ++pixel) add(pixel * part.step, 0);
  for (int i = 0; i < width; ++i) {
    for (int row = 1; row < kRows; ++row) {
      sums[0][i] = sums[0][i] + sums[row][i];
      products[0][i] = products[0][i] + products[row][i];
    }
    const std::int64_t at = first + i * kLanes, count = is_whole ? kLanes : lanes;
    sums[0][i].store(part.sums + at, count);
    if constexpr (has_x) products[0][i].store(part.products + at, count);
  }
}

template <bool has_x>
inline void add_up_strip(const Part& part, std::int64_t lanes) {
  std::int64_t lane = 0;
  for (; lane + 2 * kLanes <= lanes; lane += 2 * kLanes)
    add_up_lanes<has_x, 2, true>(part, lane, 0);
  for (; lane + kLanes <= lanes; lane += kLanes) add_up_lanes<has_x, 1, true>(part, lane, 0);
  if (lane < lanes) add_up_lanes<has_x, 1, false>(part, lane, lanes - lane);
}

// Adds up adjacent numbers of one channel.
template <bool has_x>
inline void add_up_plane(const Part& part) {
  const Vec mean(has_x ? *part.mean : 0.0F);
  constexpr int kRows = 4;
  Vec sums[kRows], products[kRows];
  for (int row = 0; row < kRows; ++row) sums[row] = products[row] = Vec(0.0F);
  const auto add = [&](std::int64_t at, int row, std::int64_t count) {
    const Vec value = Vec::loadu(part.diff + at, count);
    sums[row] = sums[row] + value;
    if constexpr (has_x) {
      products[row] = fmadd(value, Vec::loadu(part.x + at, count) - mean, products[row]);
    }
  };
  std::int64_t i = 0;
  for (; i + kRows * kLanes <= part.pixels; i += kRows * kLanes) {
    for (int row = 0; row < kRows; ++row) add(i + row * kLanes, row, kLanes);
  }
  for (; i < part.pixels; i += kLanes) add(i, 0, std::min<std::int64_t>(kLanes, part.pixels - i));
  *part.sums = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if constexpr (has_x) {
    *part.products = sum_of((products[0] + products[1]) + (products[2] + products[3]));
  }
}

template <bool has_x>
inline void add_up_part(const Part& part, std::int64_t lanes) {
  if (lanes == 1) {
    add_up_plane<has_x>(part);
  } else {
    add_up_strip<has_x>(part, lanes);
  }
}

// The factors of some channels, and the bounds of the clamp.
struct Factors {
  const float *mean, *factor, *shift, *weight;
  Vec low, high;
};

struct ChannelFactors {
  Vec mean, factor, shift, weight;
};

template <bool has_other>
[[gnu::always_inline]] inline Vec normalize(const Vec& x, const float* other, std::int64_t count,
                                            const ChannelFactors& by, const Factors& all) {
  Vec value = fmadd(x - by.mean, by.factor, by.shift);
  if constexpr (has_other) value = fmadd(Vec::loadu(other, count), by.weight, value);
  return apply_clamp(value, all.low, all.high);
}

// Handles `count` adjacent numbers of one channel.
template <bool has_other>
inline void normalize_plane(const float* x, const float* other, float* dst, std::int64_t count,
                            const Factors& factors) {
  const ChannelFactors by = {Vec(*factors.mean), Vec(*factors.factor), Vec(*factors.shift),
                             Vec(*factors.weight)};
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const std::int64_t rest = std::min<std::int64_t>(kLanes, count - i);
    normalize<has_other>(Vec::loadu(x + i, rest), other + i, rest, by, factors)
        .store(dst + i, rest);
  }
}

// Handles `pixels` pixels of a block of 16 channels.
template <bool has_other>
inline void normalize_block(const float* x, const float* other, float* dst, std::int64_t pixels,
                            const Factors& factors) {
  ChannelFactors by[kBlockVectors];
  for (int i = 0; i < kBlockVectors; ++i) {
    by[i] = {Vec::loadu(factors.mean + i * kLanes), Vec::loadu(factors.factor + i * kLanes),
             Vec::loadu(factors.shift + i * kLanes), Vec::loadu(factors.weight + i * kLanes)};
  }
  for (std::int64_t at = 0; at < pixels * kBlock; at += kBlock) {
    for (int i = 0; i < kBlockVectors; ++i) {
      const std::int64_t lane = at + i * kLanes;
      normalize<has_other>(Vec::loadu(x + lane), other + lane, kLanes, by[i], factors)
          .store(dst + lane);
    }
  }
}

// Handles `pixels` pixels of `lanes` channels.
template <bool has_other>
inline void normalize_pixels(const float* x, const float* other, float* dst, std::int64_t pixels,
                             std::int64_t lanes, const Factors& factors) {
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
    for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
      const std::int64_t rest = std::min<std::int64_t>(kLanes, lanes - lane);
      const ChannelFactors by = {
          Vec::loadu(factors.mean + lane, rest), Vec::loadu(factors.factor + lane, rest),
          Vec::loadu(factors.shift + lane, rest), Vec::loadu(factors.weight + lane, rest)};
      const std::int64_t at = pixel * lanes + lane;
      normalize<has_other>(Vec::loadu(x + at, rest), other + at, rest, by, factors)
          .store(dst + at, rest);
    }
  }
}

template <bool has_other>
inline void normalize_run(const float* x, const float* other, float* dst, std::int64_t pixels,
                          std::int64_t lanes, const Factors& factors) {
  if (lanes == 1) {
    normalize_plane<has_other>(x, other, dst, pixels, factors);
  } else if (lanes == kBlock) {
    normalize_block<has_other>(x, other, dst, pixels, factors);
  } else {
    normalize_pixels<has_other>(x, other, dst, pixels, lanes, factors);
  }
}

}  // namespace

void combine_moments(const BatchMoments& call, std::int64_t begin, std::int64_t end) {
  const BatchShape& shape = call.shape;
  const std::int64_t padded = shape.blocks * shape.lanes;
  const double share = 1.0 / static_cast<double>(shape.images * shape.pixels);
  for (std::int64_t c = begin; c < end; ++c) {
    if (c >= shape.channels) {
      call.dst[c] = call.dst[padded + c] = 0;
      continue;
    }
    const auto for_each_part = [&](const auto& visit) {
      for (std::int64_t i = 0; i < shape.images * shape.parts; ++i) {
        const std::int64_t first = i % shape.parts * shape.part_size;
        const std::int64_t count = std::min(shape.part_size, shape.pixels - first);
        visit(static_cast<double>(count), call.moments[i * shape.channels + c]);
      }
    };
    double sum = 0, squares = 0;
    for_each_part([&](double count, const Moments& part) { sum += count * part.mean; });
    const double mean = sum * share;
    for_each_part([&](double count, const Moments& part) {
      const double difference = part.mean - mean;
      squares += part.squares + count * (difference * difference);
    });
    const double variance = squares * share;
    call.dst[c] = static_cast<float>(mean);
    // Rounding may make it negative; a NaN stays a NaN.
    call.dst[padded + c] = variance < 0 ? 0.0F : static_cast<float>(variance);
  }
}

void add_up_gradients(const GradientSums& call, std::int64_t begin, std::int64_t end) {
  const BatchShape& shape = call.shape;
  const std::int64_t strips = strips_of(shape), padded = shape.blocks * shape.lanes;
  const bool has_x = call.x != nullptr;
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t part = task % shape.parts, strip = task / shape.parts % strips;
    const std::int64_t image = task / shape.parts / strips, first = part * shape.part_size;
    // In nhwc a strip is a part of the lanes of the only block, in the others it is a block.
    const bool is_cut = strips > shape.blocks;
    const std::int64_t block = is_cut ? 0 : strip, lane = is_cut ? strip * kGroupNormStrip : 0;
    const std::int64_t lanes = std::min(shape.lanes - lane, is_cut ? kGroupNormStrip : shape.lanes);
    const std::int64_t pixel = (image * shape.blocks + block) * shape.pixels + first;
    const std::int64_t at = pixel * shape.lanes + lane, channel = block * shape.lanes + lane;
    float* const to =
        call.partial + (image * shape.parts + part) * (has_x ? 2 : 1) * padded + channel;
    const std::int64_t pixels = std::min(shape.part_size, shape.pixels - first);
    if (has_x) {
      add_up_part<true>({call.diff + at, call.x + at, call.moments + channel, to, to + padded,
                         shape.lanes, pixels},
                        lanes);
    } else {
      add_up_part<false>({call.diff + at, nullptr, nullptr, to, nullptr, shape.lanes, pixels},
                         lanes);
    }
  }
}

void combine_gradients(const GradientSums& call, std::int64_t begin, std::int64_t end) {
  const BatchShape& shape = call.shape;
  const std::int64_t padded = shape.blocks * shape.lanes, kinds = call.x != nullptr ? 2 : 1;
  for (std::int64_t c = begin; c < end; ++c) {
    double sums[2] = {0, 0};
    for (std::int64_t i = 0; i < shape.images * shape.parts; ++i) {
      for (std::int64_t kind = 0; kind < kinds; ++kind)
        sums[kind] += call.partial[(i * kinds + kind) * padded + c];
    }
    call.dst[c] = static_cast<float>(sums[0]);
    if (kinds == 1) continue;
    const double variance = call.moments[padded + c];
    const bool is_pad = c >= shape.channels;
    const double factor = is_pad ? 0 : 1.0 / std::sqrt(variance + call.epsilon);
    call.dst[padded + c] = static_cast<float>(sums[1] * factor);
  }
}

void run_normalize(const Normalize& call, std::int64_t begin, std::int64_t end) {
  const BatchShape& shape = call.shape;
  const std::int64_t padded = shape.blocks * shape.lanes;
  const Clamp clamp = clamp_of(call.activation);
  while (begin < end) {
    const std::int64_t plane = begin / shape.pixels;
    const std::int64_t count = std::min((plane + 1) * shape.pixels, end) - begin;
    const float* const first = call.factors + plane % shape.blocks * shape.lanes;
    const Factors factors = {first,          first + padded, first + 2 * padded, first + 3 * padded,
                             Vec(clamp.low), Vec(clamp.high)};
    const std::int64_t at = begin * shape.lanes;
    if (call.other != nullptr) {
      normalize_run<true>(call.x + at, call.other + at, call.dst + at, count, shape.lanes, factors);
    } else {
      normalize_run<false>(call.x + at, call.x + at, call.dst + at, count, shape.lanes, factors);
    }
    begin += count;
  }
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

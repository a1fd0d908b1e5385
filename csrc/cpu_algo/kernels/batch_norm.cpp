// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "cpu_algo/kernels/epilogue.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

// A task of add_up_gradients. `second` gets the second sums of kBatchNorm.
struct Part {
  const float *diff, *x, *mean;
  float *sums, *second;
  std::int64_t step, pixels;  // floats from a pixel to the next, and their number
};

// Adds one vector to the sums.
template <SumKind kind>
[[gnu::always_inline]] inline void add_terms(const Vec& diff, const Vec& x, const Vec& mean,
                                             Vec& sums, Vec& second) {
  if constexpr (kind == SumKind::kProducts) {
    sums = fmadd(diff, x, sums);
  } else {
    sums = sums + diff;
  }
  if constexpr (kind == SumKind::kBatchNorm) second = fmadd(diff, x - mean, second);
}

// Adds up `width` adjacent vectors of each pixel, or the first `lanes` lanes of one vector, from
// the lane `first` of the strip on.
template <SumKind kind, int width, bool is_whole>
inline void add_up_lanes(const Part& part, std::int64_t first, std::int64_t lanes) {
  constexpr int kRows = 4 / width;  // independent sums, which hide the latency of an addition
  constexpr bool kHasX = kind != SumKind::kPlain, kHasMean = kind == SumKind::kBatchNorm;
  Vec mean[width], sums[kRows][width], second[kRows][width];
  const auto load = [lanes](const float* at, int i) {
    return is_whole ? Vec::loadu(at + i * kLanes) : Vec::loadu(at, lanes);
  };
  for (int i = 0; i < width; ++i) {
    mean[i] = kHasMean ? load(part.mean + first, i) : Vec(0.0F);
    for (int row = 0; row < kRows; ++row) sums[row][i] = second[row][i] = Vec(0.0F);
  }
  const float* diff = part.diff + first;
  const float* x = kHasX ? part.x + first : nullptr;
  const auto add = [&](std::int64_t offset, int row) {
    for (int i = 0; i < width; ++i) {
      const Vec value = load(diff + offset, i);
      const Vec other = kHasX ? load(x + offset, i) : value;
      add_terms<kind>(value, other, mean[i], sums[row][i], second[row][i]);
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
      second[0][i] = second[0][i] + second[row][i];
    }
    const std::int64_t at = first + i * kLanes, count = is_whole ? kLanes : lanes;
    sums[0][i].store(part.sums + at, count);
    if constexpr (kHasMean) second[0][i].store(part.second + at, count);
  }
}

template <SumKind kind>
inline void add_up_strip(const Part& part, std::int64_t lanes) {
  std::int64_t lane = 0;
  for (; lane + 2 * kLanes <= lanes; lane += 2 * kLanes) add_up_lanes<kind, 2, true>(part, lane, 0);
  for (; lane + kLanes <= lanes; lane += kLanes) add_up_lanes<kind, 1, true>(part, lane, 0);
  if (lane < lanes) add_up_lanes<kind, 1, false>(part, lane, lanes - lane);
}

// Adds up adjacent numbers of one channel.
template <SumKind kind>
inline void add_up_plane(const Part& part) {
  constexpr bool kHasX = kind != SumKind::kPlain, kHasMean = kind == SumKind::kBatchNorm;
  const Vec mean(kHasMean ? *part.mean : 0.0F);
  constexpr int kRows = 4;
  Vec sums[kRows], second[kRows];
  for (int row = 0; row < kRows; ++row) sums[row] = second[row] = Vec(0.0F);
  const auto add = [&](std::int64_t at, int row, std::int64_t count) {
    const Vec value = Vec::loadu(part.diff + at, count);
    const Vec other = kHasX ? Vec::loadu(part.x + at, count) : value;
    add_terms<kind>(value, other, mean, sums[row], second[row]);
  };
  std::int64_t i = 0;
  for (; i + kRows * kLanes <= part.pixels; i += kRows * kLanes) {
    for (int row = 0; row < kRows; ++row) add(i + row * kLanes, row, kLanes);
  }
  for (; i < part.pixels; i += kLanes) add(i, 0, std::min<std::int64_t>(kLanes, part.pixels - i));
  *part.sums = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if constexpr (kHasMean) {
    *part.second = sum_of((second[0] + second[1]) + (second[2] + second[3]));
  }
}

template <SumKind kind>
inline void add_up_part(const Part& part, std::int64_t lanes) {
  if (lanes == 1) {
    add_up_plane<kind>(part);
  } else {
    add_up_strip<kind>(part, lanes);
  }
}

inline void add_up_part(SumKind kind, const Part& part, std::int64_t lanes) {
  switch (kind) {
    case SumKind::kPlain:
      return add_up_part<SumKind::kPlain>(part, lanes);
    case SumKind::kProducts:
      return add_up_part<SumKind::kProducts>(part, lanes);
    case SumKind::kBatchNorm:
      return add_up_part<SumKind::kBatchNorm>(part, lanes);
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
  const bool has_x = call.kind != SumKind::kPlain, has_mean = call.kind == SumKind::kBatchNorm;
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t part = task % shape.parts, strip = task / shape.parts % strips;
    const std::int64_t image = task / shape.parts / strips, first = part * shape.part_size;
    // In nhwc a strip is a part of the lanes of the only block, in the others it is a block.
    const bool is_cut = strips > shape.blocks;
    const std::int64_t block = is_cut ? 0 : strip, lane = is_cut ? strip * kGroupNormStrip : 0;
    const std::int64_t lanes = std::min(shape.lanes - lane, is_cut ? kGroupNormStrip : shape.lanes);
    const std::int64_t pixel = (image * shape.blocks + block) * shape.pixels + first;
    const std::int64_t at = pixel * shape.lanes + lane, channel = block * shape.lanes + lane;
    float* const to = call.partial +
                      (image * shape.parts + part) * sums_per_channel(call.kind) * padded + channel;
    const std::int64_t pixels = std::min(shape.part_size, shape.pixels - first);
    add_up_part(call.kind,
                {call.diff + at, has_x ? call.x + at : nullptr,
                 has_mean ? call.moments + channel : nullptr, to, to + padded, shape.lanes, pixels},
                lanes);
  }
}

void combine_gradients(const GradientSums& call, std::int64_t begin, std::int64_t end) {
  const BatchShape& shape = call.shape;
  const std::int64_t padded = shape.blocks * shape.lanes, count = sums_per_channel(call.kind);
  const std::int64_t parts = shape.images * shape.parts / call.sets;  // of a set
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t set = task / padded, c = task % padded;
    const float* const partial = call.partial + set * parts * count * padded + c;
    float* const dst = call.dst + set * count * padded + c;
    double sums[2] = {0, 0};
    for (std::int64_t i = 0; i < parts; ++i) {
      for (std::int64_t k = 0; k < count; ++k) sums[k] += partial[(i * count + k) * padded];
    }
    dst[0] = static_cast<float>(sums[0]);
    if (count == 1) continue;
    const double variance = call.moments[padded + c];
    const bool is_pad = c >= shape.channels;
    const double factor = is_pad ? 0 : 1.0 / std::sqrt(variance + call.epsilon);
    dst[padded] = static_cast<float>(sums[1] * factor);
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

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "cpu_algo/kernels/epilogue.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

// The bounds of the clamp behind a batch norm.
struct Bounds {
  Vec low, high;
};

// A clamp without an upper bound gets a NaN. No comparison with it is true, so an infinite input
// keeps its gradient, as in torch.
Bounds bounds_of(const Activation& activation) {
  const Clamp clamp = clamp_of(activation);
  const bool is_open = clamp.high == std::numeric_limits<float>::infinity();
  return {Vec(clamp.low), Vec(is_open ? std::numeric_limits<float>::quiet_NaN() : clamp.high)};
}

// Returns `diff` where the clamp's input is between its bounds or a NaN, else 0.
[[gnu::always_inline]] inline Vec between(const Vec& diff, const Vec& input, const Bounds& bounds) {
  const Vec zero(0.0F);
  return where_at_most(input, bounds.low, zero, where_at_most(bounds.high, input, zero, diff));
}

// A task of add_up_gradients. `second` gets the second sums of kBatchNorm.
template <class Element>
struct Part {
  const Element *diff, *x;
  const float *mean, *factor, *shift;
  float *sums, *second;
  std::int64_t step, pixels;  // elements from a pixel to the next, and their number
  Bounds bounds;
};

constexpr bool has_mean(SumKind kind) {
  return kind == SumKind::kBatchNorm || kind == SumKind::kClamped;
}

// The numbers of one vector of channels.
struct Channels {
  Vec mean, factor, shift;
};

// Adds one vector to the sums.
template <SumKind kind>
[[gnu::always_inline]] inline void add_terms(Vec diff, const Vec& x, const Channels& by,
                                             const Bounds& bounds, Vec& sums, Vec& second) {
  if constexpr (kind == SumKind::kClamped) {
    const Vec centered = x - by.mean;
    diff = between(diff, fmadd(centered, by.factor, by.shift), bounds);
    second = fmadd(diff, centered, second);
  }
  if constexpr (kind == SumKind::kBatchNorm) second = fmadd(diff, x - by.mean, second);
  sums = kind == SumKind::kProducts ? fmadd(diff, x, sums) : sums + diff;
}

// Adds up `width` adjacent vectors of each pixel, or the first `lanes` lanes of one vector, from
// the lane `first` of the strip on.
template <SumKind kind, int width, bool is_whole, class Element>
inline void add_up_lanes(const Part<Element>& part, std::int64_t first, std::int64_t lanes) {
  constexpr int kRows = 4 / width;  // independent sums, which hide the latency of an addition
  constexpr bool kHasX = kind != SumKind::kPlain, kIsClamped = kind == SumKind::kClamped;
  Channels by[width];
  Vec sums[kRows][width], second[kRows][width];
  const auto load = [lanes](const auto* at, int i) {
    return is_whole ? Vec::loadu(at + i * kLanes) : Vec::loadu(at, lanes);
  };
  for (int i = 0; i < width; ++i) {
    by[i].mean = has_mean(kind) ? load(part.mean + first, i) : Vec(0.0F);
    by[i].factor = kIsClamped ? load(part.factor + first, i) : Vec(0.0F);
    by[i].shift = kIsClamped ? load(part.shift + first, i) : Vec(0.0F);
    for (int row = 0; row < kRows; ++row) sums[row][i] = second[row][i] = Vec(0.0F);
  }
  const Element* diff = part.diff + first;
  const Element* x = kHasX ? part.x + first : nullptr;
  const auto add = [&](std::int64_t offset, int row) {
    for (int i = 0; i < width; ++i) {
      const Vec value = load(diff + offset, i);
      const Vec other = kHasX ? load(x + offset, i) : value;
      add_terms<kind>(value, other, by[i], part.bounds, sums[row][i], second[row][i]);
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
    if constexpr (has_mean(kind)) second[0][i].store(part.second + at, count);
  }
}

template <SumKind kind, class Element>
inline void add_up_strip(const Part<Element>& part, std::int64_t lanes) {
  std::int64_t lane = 0;
  for (; lane + 2 * kLanes <= lanes; lane += 2 * kLanes) add_up_lanes<kind, 2, true>(part, lane, 0);
  for (; lane + kLanes <= lanes; lane += kLanes) add_up_lanes<kind, 1, true>(part, lane, 0);
  if (lane < lanes) add_up_lanes<kind, 1, false>(part, lane, lanes - lane);
}

// Adds up adjacent numbers of one channel.
template <SumKind kind, class Element>
inline void add_up_plane(const Part<Element>& part) {
  constexpr bool kHasX = kind != SumKind::kPlain, kIsClamped = kind == SumKind::kClamped;
  const Channels by = {Vec(has_mean(kind) ? *part.mean : 0.0F),
                       Vec(kIsClamped ? *part.factor : 0.0F), Vec(kIsClamped ? *part.shift : 0.0F)};
  constexpr int kRows = 4;
  Vec sums[kRows], second[kRows];
  for (int row = 0; row < kRows; ++row) sums[row] = second[row] = Vec(0.0F);
  const auto add = [&](std::int64_t at, int row, std::int64_t count) {
    const Vec value = Vec::loadu(part.diff + at, count);
    const Vec other = kHasX ? Vec::loadu(part.x + at, count) : value;
    add_terms<kind>(value, other, by, part.bounds, sums[row], second[row]);
  };
  std::int64_t i = 0;
  for (; i + kRows * kLanes <= part.pixels; i += kRows * kLanes) {
    for (int row = 0; row < kRows; ++row) add(i + row * kLanes, row, kLanes);
  }
  for (; i < part.pixels; i += kLanes) add(i, 0, std::min<std::int64_t>(kLanes, part.pixels - i));
  *part.sums = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if constexpr (has_mean(kind)) {
    *part.second = sum_of((second[0] + second[1]) + (second[2] + second[3]));
  }
}

template <SumKind kind, class Element>
inline void add_up_part(const Part<Element>& part, std::int64_t lanes) {
  if (part.step == 1) {  // a strip of one lane has pixels that are not adjacent
    add_up_plane<kind>(part);
  } else {
    add_up_strip<kind>(part, lanes);
  }
}

template <class Element>
inline void add_up_part(SumKind kind, const Part<Element>& part, std::int64_t lanes) {
  switch (kind) {
    case SumKind::kPlain:
      return add_up_part<SumKind::kPlain>(part, lanes);
    case SumKind::kProducts:
      return add_up_part<SumKind::kProducts>(part, lanes);
    case SumKind::kBatchNorm:
      return add_up_part<SumKind::kBatchNorm>(part, lanes);
    case SumKind::kClamped:
      return add_up_part<SumKind::kClamped>(part, lanes);
  }
}

// What Normalize::other is.
enum class Other : std::uint8_t { kNone, kPlain, kClamped };

// The factors of some channels, the bounds of the clamp of the result, and those of the clamp
// behind.
struct Factors {
  const float *mean, *factor, *shift, *weight, *clamp_factor, *clamp_shift;
  Vec low, high;
  Bounds behind;
};

struct ChannelFactors {
  Vec mean, factor, shift, weight, clamp_factor, clamp_shift;
};

// Returns the factors that `load` reads. Those that `other` does not need are zero.
template <Other other, class Load>
[[gnu::always_inline]] inline ChannelFactors factors_of(const Factors& all, const Load& load) {
  ChannelFactors by = {load(all.mean), load(all.factor), load(all.shift),
                       Vec(0.0F),      Vec(0.0F),        Vec(0.0F)};
  if constexpr (other != Other::kNone) by.weight = load(all.weight);
  if constexpr (other == Other::kClamped) {
    by.clamp_factor = load(all.clamp_factor);
    by.clamp_shift = load(all.clamp_shift);
  }
  return by;
}

template <Other kind, class Element>
[[gnu::always_inline]] inline Vec normalize(const Vec& x, const Element* other, std::int64_t count,
                                            const ChannelFactors& by, const Factors& all) {
  const Vec centered = x - by.mean;
  Vec value = fmadd(centered, by.factor, by.shift);
  if constexpr (kind != Other::kNone) {
    Vec added = Vec::loadu(other, count);
    if constexpr (kind == Other::kClamped) {
      added = between(added, fmadd(centered, by.clamp_factor, by.clamp_shift), all.behind);
    }
    value = fmadd(added, by.weight, value);
  }
  return apply_clamp(value, all.low, all.high);
}

// Handles `count` adjacent numbers of one channel.
template <Other kind, class Element>
inline void normalize_plane(const Element* x, const Element* other, Element* dst,
                            std::int64_t count, const Factors& factors) {
  const auto by = factors_of<kind>(factors, [](const float* at) { return Vec(*at); });
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const std::int64_t rest = std::min<std::int64_t>(kLanes, count - i);
    normalize<kind>(Vec::loadu(x + i, rest), other + i, rest, by, factors).store(dst + i, rest);
  }
}

// Handles `pixels` pixels of a block of 16 channels.
template <Other kind, class Element>
inline void normalize_block(const Element* x, const Element* other, Element* dst,
                            std::int64_t pixels, const Factors& factors) {
  ChannelFactors by[kBlockVectors];
  for (int i = 0; i < kBlockVectors; ++i) {
    by[i] = factors_of<kind>(factors, [i](const float* at) { return Vec::loadu(at + i * kLanes); });
  }
  for (std::int64_t at = 0; at < pixels * kBlock; at += kBlock) {
    for (int i = 0; i < kBlockVectors; ++i) {
      const std::int64_t lane = at + i * kLanes;
      normalize<kind>(Vec::loadu(x + lane), other + lane, kLanes, by[i], factors).store(dst + lane);
    }
  }
}

// Handles `pixels` pixels of `lanes` channels.
template <Other kind, class Element>
inline void normalize_pixels(const Element* x, const Element* other, Element* dst,
                             std::int64_t pixels, std::int64_t lanes, const Factors& factors) {
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
    for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
      const std::int64_t rest = std::min<std::int64_t>(kLanes, lanes - lane);
      const auto by = factors_of<kind>(
          factors, [lane, rest](const float* at) { return Vec::loadu(at + lane, rest); });
      const std::int64_t at = pixel * lanes + lane;
      normalize<kind>(Vec::loadu(x + at, rest), other + at, rest, by, factors)
          .store(dst + at, rest);
    }
  }
}

template <Other kind, class Element>
inline void normalize_run(const Element* x, const Element* other, Element* dst, std::int64_t pixels,
                          std::int64_t lanes, const Factors& factors) {
  if (lanes == 1) {
    normalize_plane<kind>(x, other, dst, pixels, factors);
  } else if (lanes == kBlock) {
    normalize_block<kind>(x, other, dst, pixels, factors);
  } else {
    normalize_pixels<kind>(x, other, dst, pixels, lanes, factors);
  }
}

template <class Element>
inline void add_up(const GradientSums& call, std::int64_t begin, std::int64_t end) {
  const BatchShape& shape = call.shape;
  const std::int64_t strips = strips_of(shape), padded = shape.blocks * shape.lanes;
  const bool has_x = call.kind != SumKind::kPlain, is_clamped = call.kind == SumKind::kClamped;
  const Bounds bounds = bounds_of(call.clamp.activation);
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
    Part<Element> own = {.diff = of<Element>(call.diff) + at,
                         .sums = to,
                         .second = to + padded,
                         .step = shape.lanes,
                         .pixels = pixels,
                         .bounds = bounds};
    if (has_x) own.x = of<Element>(call.x) + at;
    if (has_mean(call.kind)) own.mean = call.moments + channel;
    if (is_clamped) {
      own.factor = call.clamp.factors + channel;
      own.shift = own.factor + padded;
    }
    add_up_part(call.kind, own, lanes);
  }
}

template <class Element>
inline void normalize_all(const Normalize& call, std::int64_t begin, std::int64_t end) {
  const BatchShape& shape = call.shape;
  const std::int64_t padded = shape.blocks * shape.lanes;
  const Clamp clamp = clamp_of(call.activation);
  const Bounds behind = bounds_of(call.clamp.activation);
  while (begin < end) {
    const std::int64_t plane = begin / shape.pixels;
    const std::int64_t count = std::min((plane + 1) * shape.pixels, end) - begin;
    const std::int64_t channel = plane % shape.blocks * shape.lanes;
    const float* const first = call.factors + channel;
    Factors factors = {.mean = first,
                       .factor = first + padded,
                       .shift = first + 2 * padded,
                       .weight = first + 3 * padded,
                       .low = Vec(clamp.low),
                       .high = Vec(clamp.high),
                       .behind = behind};
    const std::int64_t at = begin * shape.lanes;
    const Element* const x = of<Element>(call.x) + at;
    Element* const dst = of<Element>(call.dst) + at;
    if (call.other == nullptr) {
      normalize_run<Other::kNone>(x, x, dst, count, shape.lanes, factors);
    } else if (call.clamp.factors == nullptr) {
      normalize_run<Other::kPlain>(x, of<Element>(call.other) + at, dst, count, shape.lanes,
                                   factors);
    } else {
      factors.clamp_factor = call.clamp.factors + channel;
      factors.clamp_shift = factors.clamp_factor + padded;
      normalize_run<Other::kClamped>(x, of<Element>(call.other) + at, dst, count, shape.lanes,
                                     factors);
    }
    begin += count;
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
  add_up<float>(call, begin, end);
}

void add_up_gradients_bf16(const GradientSums& call, std::int64_t begin, std::int64_t end) {
  add_up<Bf16>(call, begin, end);
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
  normalize_all<float>(call, begin, end);
}

void run_normalize_bf16(const Normalize& call, std::int64_t begin, std::int64_t end) {
  normalize_all<Bf16>(call, begin, end);
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

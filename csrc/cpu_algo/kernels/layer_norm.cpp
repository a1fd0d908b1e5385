// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/layer_norm.h"

#include <algorithm>
#include <cmath>

#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

// The channels of a pixel in one vector: `count` channels, and zeros in the lanes from `count` to
// `width`.
struct Part {
  std::int64_t offset, channel, count, width;  // offset: from the pixel's first channel
};

template <class Visit>
[[gnu::always_inline]] inline void for_each_part(const LayerNorm& call, const Visit& visit) {
  for (std::int64_t group = 0; group < call.groups; ++group) {
    for (std::int64_t lane = 0; lane < call.lanes; lane += kLanes) {
      const std::int64_t channel = group * call.lanes + lane;
      const std::int64_t width = std::min<std::int64_t>(kLanes, call.lanes - lane);
      const std::int64_t left = std::max<std::int64_t>(call.channels - channel, 0);
      visit(Part{group * call.pixels * call.lanes + lane, channel, std::min(left, width), width});
    }
  }
}

// Returns the first `count` lanes of x, and zeros.
[[gnu::always_inline]] inline Vec first_of(const Vec& x, std::int64_t count) {
  if (count == kLanes) return x;
  alignas(Native) float lanes[kLanes];
  x.store(lanes);
  return Vec::loadu(lanes, count);
}

// Normalizes one pixel whose channels are adjacent, all of them or block by block.
//
// The rounding error of a sum of large numbers is large compared with their differences. Without
// rounding, the mean of the differences would be zero. So this mean is subtracted from each
// difference.
inline void normalize_pixel(const LayerNorm& call, const float* src, float* dst) {
  const float share = 1.0F / static_cast<float>(call.channels);
  Vec sum(0.0F);
  if (call.is_about_mean) {
    for_each_part(call,
                  [&](const Part& part) { sum = sum + Vec::loadu(src + part.offset, part.count); });
  }
  const Vec mean(share * sum_of(sum));
  Vec differences(0.0F), squares(0.0F);
  for_each_part(call, [&](const Part& part) {
    const Vec x = Vec::loadu(src + part.offset, part.count);
    const Vec difference = first_of(x - mean, part.count);
    differences = differences + difference;
    squares = fmadd(difference, difference, squares);
  });
  const float rest = call.is_about_mean ? share * sum_of(differences) : 0.0F;
  float spread = share * sum_of(squares) - rest * rest;
  spread = spread < 0 ? 0 : spread;  // rounding may make it negative; a NaN stays a NaN
  const Vec factor(1.0F / std::sqrt(call.factor * spread + call.epsilon));
  const Vec center = call.is_centered ? mean : Vec(0.0F);
  const Vec correction(call.is_centered ? rest : 0.0F);
  for_each_part(call, [&](const Part& part) {
    const Vec difference = Vec::loadu(src + part.offset, part.count) - center - correction;
    const Vec scale = Vec::loadu(call.scale + part.channel, part.count);
    const Vec shift = Vec::loadu(call.shift + part.channel, part.count);
    const Vec y = fmadd(difference * factor, scale, shift);
    first_of(y, part.count).store(dst + part.offset, part.width);
  });
}

// Normalizes `count` <= kLanes adjacent pixels, as they lie in nchw.
inline void normalize_pixels(const LayerNorm& call, const float* src, float* dst,
                             std::int64_t count) {
  const Vec share(1.0F / static_cast<float>(call.channels));
  Vec sum(0.0F);
  for (std::int64_t c = 0; call.is_about_mean && c < call.channels; ++c)
    sum = sum + Vec::loadu(src + c * call.pixels, count);
  const Vec mean = sum * share;
  Vec differences(0.0F), squares(0.0F);
  for (std::int64_t c = 0; c < call.channels; ++c) {
    const Vec difference = Vec::loadu(src + c * call.pixels, count) - mean;
    differences = differences + difference;
    squares = fmadd(difference, difference, squares);
  }
  const Vec rest = call.is_about_mean ? differences * share : Vec(0.0F);
  alignas(Native) float factors[kLanes];
  const Vec spread = clamp_min(fnmadd(rest, rest, squares * share), Vec(0.0F));
  fmadd(spread, Vec(call.factor), Vec(call.epsilon)).store(factors);
  for (float& factor : factors) factor = 1.0F / std::sqrt(factor);
  const Vec factor = Vec::loadu(factors);
  const Vec center = call.is_centered ? mean : Vec(0.0F);
  const Vec correction = call.is_centered ? rest : Vec(0.0F);
  for (std::int64_t c = 0; c < call.channels; ++c) {
    const Vec difference = Vec::loadu(src + c * call.pixels, count) - center - correction;
    fmadd(difference * factor, Vec(call.scale[c]), Vec(call.shift[c]))
        .store(dst + c * call.pixels, count);
  }
}

}  // namespace

void run_layer_norm(const LayerNorm& call, std::int64_t begin, std::int64_t end) {
  const std::int64_t step = call.lanes == 1 ? kLanes : 1;  // pixels
  while (begin < end) {
    const std::int64_t image = begin / call.pixels, pixel = begin % call.pixels;
    const std::int64_t count = std::min({step, end - begin, call.pixels - pixel});
    const std::int64_t offset = (image * call.groups * call.pixels + pixel) * call.lanes;
    if (call.lanes == 1) {
      normalize_pixels(call, call.src + offset, call.dst + offset, count);
    } else {
      normalize_pixel(call, call.src + offset, call.dst + offset);
    }
    begin += count;
  }
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

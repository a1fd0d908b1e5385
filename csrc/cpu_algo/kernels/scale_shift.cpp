// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/scale_shift.h"

#include "cpu_algo/kernels/epilogue.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

constexpr std::int64_t kChunk = 2048;  // floats that stay in the L1 cache for their activation

inline float affine(float x, float scale, float shift, const Clamp& clamp) {
  float value = x * scale + shift;
  value = value < clamp.low ? clamp.low : value;
  return value > clamp.high ? clamp.high : value;
}

/// Computes `count` elements of one channel.
inline void run_plane(const float* src, float* dst, std::int64_t count, float scale, float shift,
                      const Clamp& clamp) {
  for (std::int64_t i = 0; i < count; ++i) dst[i] = affine(src[i], scale, shift, clamp);
}

/// Computes `pixels` pixels of one block of 16 channels. The scales stay in registers.
inline void run_block(const float* src, float* dst, std::int64_t pixels, const float* scale,
                      const float* shift, const Clamp& clamp) {
  float scales[kBlock], shifts[kBlock];  // copies, which dst cannot overlap
  for (int lane = 0; lane < kBlock; ++lane) {
    scales[lane] = scale != nullptr ? scale[lane] : 1.0F;
    shifts[lane] = shift != nullptr ? shift[lane] : 0.0F;
  }
  for (std::int64_t i = 0; i < pixels; ++i, src += kBlock, dst += kBlock) {
    for (int lane = 0; lane < kBlock; ++lane) {
      dst[lane] = affine(src[lane], scales[lane], shifts[lane], clamp);
    }
  }
}

/// Computes `pixels` pixels of `lanes` channels each.
inline void run_pixels(const float* src, float* dst, std::int64_t pixels, std::int64_t lanes,
                       const float* scale, const float* shift, const Clamp& clamp) {
  for (std::int64_t i = 0; i < pixels; ++i, src += lanes, dst += lanes) {
    if (scale == nullptr) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        dst[lane] = affine(src[lane], 1.0F, shift[lane], clamp);
      }
    } else if (shift == nullptr) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        dst[lane] = affine(src[lane], scale[lane], 0.0F, clamp);
      }
    } else {
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        dst[lane] = affine(src[lane], scale[lane], shift[lane], clamp);
      }
    }
  }
}

}  // namespace

void run_scale_shift(const ScaleShift& call, std::int64_t begin, std::int64_t end) {
  const Clamp clamp = clamp_of(call.activation);
  const std::int64_t chunk = kChunk > call.lanes ? kChunk / call.lanes : 1;
  while (begin < end) {
    const std::int64_t group = begin / call.pixels;
    std::int64_t count = (group + 1) * call.pixels - begin;
    count = count < end - begin ? count : end - begin;
    count = count < chunk ? count : chunk;
    const std::int64_t channel = group % call.periods * call.lanes;
    const float* src = call.src + begin * call.lanes;
    const float* scale = call.scale != nullptr ? call.scale + channel : nullptr;
    const float* shift = call.shift != nullptr ? call.shift + channel : nullptr;
    float* dst = call.dst + begin * call.lanes;
    if (call.lanes == 1) {
      run_plane(src, dst, count, scale != nullptr ? *scale : 1.0F, shift != nullptr ? *shift : 0.0F,
                clamp);
    } else if (call.lanes == kBlock) {
      run_block(src, dst, count, scale, shift, clamp);
    } else {
      run_pixels(src, dst, count, call.lanes, scale, shift, clamp);
    }
    if (!is_clamp(call.activation)) activate(dst, dst, count * call.lanes, call.activation);
    begin += count;
  }
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/epilogue.h"
#include "cpu_algo/kernels/scale_shift.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

constexpr std::int64_t kChunk = 2048;  // floats that stay in the L1 cache for their activation

/// Computes pixels [begin, end) with elements of bf16 in nhwc. Each result is rounded once, after
/// the activation. `Factor` is the type of scale and shift.
template <class Factor>
void run_bf16(const ScaleShift& call, std::int64_t begin, std::int64_t end) {
  const auto* scales = of<Factor>(call.scale);
  const auto* shifts = of<Factor>(call.shift);
  const Clamp clamp = clamp_of(call.activation);
  const Vec low(clamp.low), high(clamp.high), one(1.0F), zero(0.0F);
  const bool is_clamped = is_clamp(call.activation);
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    const std::int64_t channel = pixel / call.pixels % call.periods * call.lanes;
    for (std::int64_t first = 0; first < call.lanes; first += kChunk) {
      const std::int64_t at = pixel * call.lanes + first;
      const std::int64_t count = call.lanes - first < kChunk ? call.lanes - first : kChunk;
      const Bf16* src = of<Bf16>(call.src) + at;
      Bf16* dst = of<Bf16>(call.dst) + at;
      float results[kChunk];
      for (std::int64_t i = 0; i < count; i += kLanes) {
        const std::int64_t lanes = i + kLanes < count ? kLanes : count - i, c = channel + first + i;
        const Vec scale = scales != nullptr ? Vec::loadu(scales + c, lanes) : one;
        const Vec shift = shifts != nullptr ? Vec::loadu(shifts + c, lanes) : zero;
        const Vec x = apply_clamp(fmadd(Vec::loadu(src + i, lanes), scale, shift), low, high);
        is_clamped ? x.store(dst + i, lanes) : x.store(results + i);
      }
      if (!is_clamped) activate(results, dst, count, call.activation);
    }
  }
}

}  // namespace

void run_scale_shift_bf16(const ScaleShift& call, std::int64_t begin, std::int64_t end) {
  run_bf16<float>(call, begin, end);
}

void run_channelwise_bf16(const ScaleShift& call, std::int64_t begin, std::int64_t end) {
  run_bf16<Bf16>(call, begin, end);
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

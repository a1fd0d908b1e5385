// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Rounding of weights to 16 bits. The functions work on bits without branches, so that the compiler
// vectorizes loops of them.

#include <algorithm>
#include <bit>
#include <cstdint>

namespace torchalgo::cpu {

/// The bits of infinity. Those of a NaN are more, and those of a finite number less.
inline constexpr std::uint32_t kInfinity = 0x7f800000;

/// Returns the bits of |x|.
[[nodiscard]] inline std::uint32_t magnitude_of(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffff;
}

/// Returns the sign of `x` as the highest of 16 bits.
[[nodiscard]] inline std::uint32_t sign_of(float x) {
  return std::bit_cast<std::uint32_t>(x) >> 16 & 0x8000;
}

/// Returns the bits of |x|, at most `largest` if x is finite: larger floats would be rounded to
/// infinity.
[[nodiscard]] inline std::uint32_t keep_finite(float x, std::uint32_t largest) {
  const std::uint32_t magnitude = magnitude_of(x);
  return std::min(magnitude, magnitude < kInfinity ? largest : magnitude);
}

/// Returns the nearest bf16. A NaN stays a NaN, and a finite number stays finite.
[[nodiscard]] inline std::uint16_t to_bf16(float x) {
  const std::uint32_t magnitude = keep_finite(x, 0x7f7f0000);
  const std::uint32_t rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
  return static_cast<std::uint16_t>(sign_of(x) | (magnitude > kInfinity ? 0x7fc0 : rounded));
}

}  // namespace torchalgo::cpu

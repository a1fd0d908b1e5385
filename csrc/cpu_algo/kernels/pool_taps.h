// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The windows of poolings. Only sources of this folder may include it: everything is in an
// anonymous namespace.

#include <cstdint>

#include "cpu_algo/kernels/pool.h"

namespace torchalgo::kernels {
namespace {

constexpr std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// The taps of a window that lie inside the tensor: first + i * step for i < count.
struct Taps {
  std::int64_t first, count, step;
  std::int64_t padded;  // taps that lie inside the padded tensor
};

inline Taps taps_of(const PoolAxis& axis, std::int64_t index) {
  if (axis.is_adaptive) {
    if (axis.out == 1) return {0, axis.in, 1, axis.in};  // divisions would cost as much as a plane
    const std::int64_t first = index * axis.in / axis.out;
    const std::int64_t last = ((index + 1) * axis.in + axis.out - 1) / axis.out;
    return {first, last - first, 1, last - first};
  }
  const std::int64_t start = index * axis.stride - axis.pad;
  if (axis.dilation == 1) {
    const std::int64_t padded_last = min(start + axis.window, axis.in + axis.pad);
    const std::int64_t first = start < 0 ? 0 : start;
    const std::int64_t last = min(padded_last, axis.in);
    return {first, last > first ? last - first : 0, 1, padded_last - start};
  }
  const std::int64_t skipped = start < 0 ? (axis.dilation - 1 - start) / axis.dilation : 0;
  const std::int64_t first = start + skipped * axis.dilation;
  const std::int64_t inside =
      first < axis.in ? (axis.in - first + axis.dilation - 1) / axis.dilation : 0;
  const std::int64_t left = axis.window > skipped ? axis.window - skipped : 0;
  return {first, min(left, inside), axis.dilation, axis.window};
}

/// Returns the factor for a window's sum, and 1 for the maximum.
inline float scale_of(const Pool& pool, const Taps& rows, const Taps& columns) {
  if (pool.is_max) return 1;
  const std::int64_t divisor =
      pool.count_include_pad ? rows.padded * columns.padded : rows.count * columns.count;
  return divisor > 0 ? 1.0F / static_cast<float>(divisor) : 0.0F;
}

}  // namespace
}  // namespace torchalgo::kernels

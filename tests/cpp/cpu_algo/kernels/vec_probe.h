// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The operations of kernels/vec.h as functions on memory, once per instruction set, for vec_test.

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

enum class VecOperation : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFmadd,
  kFnmadd,
  kClampMin,
  kClampMax,
  kMaximum,
  kWhereLess,    // c where a < b, else a
  kWhereAtMost,  // c where a <= b, else a
  kShiftLeftBy23,
  kSpread,
};

TORCHALGO_DECLARE_KERNEL(int vec_lanes())

/// dst = operation(a, b, c) on vec_lanes() floats; kSpread takes a[0] only.
TORCHALGO_DECLARE_KERNEL(void run_vec(VecOperation operation, const float* a, const float* b,
                                      const float* c, float* dst))

/// dst: 2 * vec_lanes() floats.
TORCHALGO_DECLARE_KERNEL(void interleave_vecs(const float* a, const float* b, float* dst))

TORCHALGO_DECLARE_KERNEL(float sum_of_lanes(const float* src))

/// Loads the first `count` floats and stores all lanes.
TORCHALGO_DECLARE_KERNEL(void load_first(const float* src, std::int64_t count, float* dst))

/// Loads all lanes and stores the first `count`.
TORCHALGO_DECLARE_KERNEL(void store_first(const float* src, std::int64_t count, float* dst))

/// Loads the first `count` numbers of bf16 and stores all lanes.
TORCHALGO_DECLARE_KERNEL(void widen_first(const std::uint16_t* src, std::int64_t count, float* dst))

/// Loads all lanes and stores the first `count` as bf16.
TORCHALGO_DECLARE_KERNEL(void round_first(const float* src, std::int64_t count, std::uint16_t* dst))

}  // namespace torchalgo::kernels

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The most elements of a transformed filter along one axis, and the most taps of a filter.
inline constexpr int kMostWinogradSize = 10, kMostWinogradTaps = 7;

/// The transform of the filters of one panel of output channels. It is done in double.
struct WinogradWeights {
  const float* weights;     // the panel's first filter; [filters, channels, r, s]
  float* dst;               // [rows * columns, depth, width], zero where there is no filter
  const double* by_row;     // [rows, r]
  const double* by_column;  // [columns, s]
  std::int64_t filters;     // of the panel that exist; at most `width`
  std::int64_t channels;    // of a filter
  std::int64_t depth;       // the channels, rounded up
  std::int64_t width;       // filters of the panel, a multiple of 16
  int r, s, rows, columns;
};

TORCHALGO_DECLARE_KERNEL(void transform_winograd_weights(const WinogradWeights& call))

}  // namespace torchalgo::kernels

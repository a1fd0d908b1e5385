// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/winograd_weights.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

constexpr int kFilters = 16;  // that are transformed at once, each in a lane

using Lane = double[kFilters];

// dst = the product of a matrix row and `count` vectors, which lie `step` vectors apart.
inline void combine(const double* row, const Lane* src, int count, int step, double* dst) {
  Lane sum;
  for (int lane = 0; lane < kFilters; ++lane) sum[lane] = row[0] * src[0][lane];
  for (int i = 1; i < count; ++i) {
    for (int lane = 0; lane < kFilters; ++lane) sum[lane] += row[i] * src[i * step][lane];
  }
  for (int lane = 0; lane < kFilters; ++lane) dst[lane] = sum[lane];
}

}  // namespace

void transform_winograd_weights(const WinogradWeights& call) {
  const int r = call.r, s = call.s;
  const std::int64_t taps = std::int64_t{r} * s;
  alignas(64) Lane filter[kMostWinogradTaps * kMostWinogradTaps];
  alignas(64) Lane half[kMostWinogradSize * kMostWinogradTaps];  // transformed along y
  alignas(64) Lane element;
  for (std::int64_t first = 0; first < call.width; first += kFilters) {
    const std::int64_t left = call.filters - first;
    const std::int64_t count = left < 0 ? 0 : left < kFilters ? left : kFilters;
    for (std::int64_t c = 0; c < call.depth; ++c) {
      const bool exists = c < call.channels;
      for (std::int64_t lane = 0; lane < kFilters; ++lane) {
        const float* const at = call.weights + ((first + lane) * call.channels + c) * taps;
        for (std::int64_t tap = 0; tap < taps; ++tap)
          filter[tap][lane] = exists && lane < count ? static_cast<double>(at[tap]) : 0.0;
      }
      for (int y = 0; y < call.rows; ++y) {
        for (int x = 0; x < s; ++x) combine(call.by_row + y * r, filter + x, r, s, half[y * s + x]);
      }
      for (int y = 0; y < call.rows; ++y) {
        for (int x = 0; x < call.columns; ++x) {
          combine(call.by_column + x * s, half + y * s, s, 1, element);
          float* const to = call.dst +
                            ((std::int64_t{y} * call.columns + x) * call.depth + c) * call.width +
                            first;
          for (int lane = 0; lane < kFilters; ++lane) to[lane] = static_cast<float>(element[lane]);
        }
      }
    }
  }
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace torchalgo {

/// Kernels that run at the machine's highest rates, on one thread each.
struct PeakKernels {
  std::function<float(std::int64_t rounds, float seed)> multiply_adds;
  double flops_per_round = 0;
  std::function<float(const float* src, std::int64_t count)> reads;
  std::function<void(const float* src, float* dst, std::int64_t count)> copy;
};

/// The bandwidth at one working set, which is the number of bytes that all threads together read or
/// write repeatedly.
struct Bandwidth {
  std::int64_t working_set_bytes = 0;
  double bytes_per_ns = 0;
  bool operator==(const Bandwidth&) const = default;
};

/// The highest rates seen. Nothing on this machine runs faster, except at a higher clock frequency.
struct Probes {
  double flops_per_ns = 0;
  std::vector<Bandwidth> bandwidths;  // by working set, each size double the one before
  bool operator==(const Probes&) const = default;
};

/// Measures the peak rates on all threads, as the best of several rounds of about 100 us; `rounds`
/// sets their number. The bandwidth at a working set is the higher one of reading and of copying,
/// where each element counts twice. It takes about half a second.
[[nodiscard]] Probes probe_peaks(const PeakKernels& kernels, int rounds = 9);

}  // namespace torchalgo

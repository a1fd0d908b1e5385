// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace torchalgo {

/// Work at the machine's highest rate, for one thread each.
struct PeakKernels {
  std::function<float(std::int64_t rounds, float seed)> multiply_adds;
  double flops_per_round = 0;
  std::function<float(const float* src, std::int64_t count)> reads;
  std::function<void(const float* src, float* dst, std::int64_t count)> copy;
};

/// Bytes that all threads together pass again and again, read or written.
struct Bandwidth {
  std::int64_t working_set_bytes = 0;
  double bytes_per_ns = 0;
  bool operator==(const Bandwidth&) const = default;
};

/// The highest rates seen; nothing that runs on the machine is faster, but for its clock.
struct Probes {
  double flops_per_ns = 0;
  std::vector<Bandwidth> bandwidths;  // by working set, each size double the one before
  bool operator==(const Probes&) const = default;
};

/// The best of `rounds` rounds of some 100 us on all threads. At a working set, the higher of
/// reading and of copying (each element counts twice). Takes about half a second.
[[nodiscard]] Probes probe_peaks(const PeakKernels& kernels, int rounds = 9);

}  // namespace torchalgo

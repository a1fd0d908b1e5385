// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo {

/// The least work of a run, on any machine. Divided by the machine's highest rates, it is a lower
/// bound of the time.
struct Work {
  double flops = 0;  // multiplications and additions, 2 per FMA
  double bytes = 0;  // in memory of any kind: each counted element is read or written once
  bool operator==(const Work&) const = default;
};

/// Returns the bytes that every algorithm must read or write for a problem, in logical sizes, if it
/// stores all data as `stored`. Pad lanes, transformed weights and elements that a strided window
/// skips are not counted.
[[nodiscard]] double least_bytes(const Problem& problem, DType stored);
[[nodiscard]] double least_bytes(const Problem& problem);  // stored in the problem's type

/// Returns the work of a direct algorithm, which multiplies each weight with each input element
/// that the definition pairs it with. Taps that meet only padding are not counted. It covers
/// convolutions of all directions, linear layers and attention. `flops` is 0 for other problems.
[[nodiscard]] Work direct_work(const Problem& problem);

}  // namespace torchalgo

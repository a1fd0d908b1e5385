// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo {

/// What a run cannot do without, whatever the machine: over the machine's highest rates it is a
/// lower bound of the time.
struct Work {
  double flops = 0;  // multiplications and additions, 2 per FMA
  double bytes = 0;  // in memory of any kind: each element that counts read once or written once
  bool operator==(const Work&) const = default;
};

/// Bytes of a problem by any algorithm, in logical sizes: padded lanes, transformed weights and
/// what a strided window steps over are not counted.
[[nodiscard]] double least_bytes(const Problem& problem);

/// Of an algorithm that multiplies every weight with every input element that it meets, as the
/// definition does; taps that meet only padding are not counted. Convolutions of all directions and
/// linear layers; 0 for the others.
[[nodiscard]] Work direct_work(const Problem& problem);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <span>
#include <string_view>

#include "provider/algorithm.h"

namespace torchalgo::cpu {

/// What the Winograd rows differ in.
struct WinogradRow {
  std::string_view name;             // "cpu.winograd_f4x4_3x3"; the variants are <name>.tN
  int m = 2;                         // a tile has m x m outputs
  std::span<const int> block_sizes;  // the N of the variants, ascending
};

/// The row on the kernels' build `isa`; see kernels/winograd.h for the algorithm.
///
/// A variant .tN divides the tiles into equal blocks of at most N. Few tiles per block keep their
/// transforms in L2, many read the weights less often; which wins depends on the shape, so all N
/// that differ are offered, as long as a thread's scratch is at most 2 MiB. Threads share the
/// blocks, or the output channels if there are fewer blocks than threads.
[[nodiscard]] Algorithm make_winograd(const WinogradRow& row, std::string_view isa);

}  // namespace torchalgo::cpu

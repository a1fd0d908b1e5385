// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include "cpu_algo/kernels/winograd.h"
#include "provider/algorithm.h"

namespace torchalgo::cpu {

/// Winograd's minimal filtering with one tile, src and dst in one layout.
///
/// A variant <name>.tN divides the tiles into equal blocks of at most N. Few tiles per block keep
/// their transforms in L2, many read the weights less often. Which is faster depends on the shape,
/// so all N that differ are offered, as long as a thread's scratch is at most 2 MiB. Threads share
/// the blocks, or the output channels if there are fewer blocks than threads.
struct WinogradAlgorithm {
  std::string_view name;
  int version = 1;
  kernels::WinogradTile tile;        // one of kernels::kWinogradTiles
  Layout layout = Layout::kNChw16c;  // or kNhwc
};
/// It also computes the gradient with respect to src where that is a forward convolution.
[[nodiscard]] Algorithm make_winograd(const WinogradAlgorithm& winograd, std::string_view isa);

}  // namespace torchalgo::cpu

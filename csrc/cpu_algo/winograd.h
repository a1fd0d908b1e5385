// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cpu_algo/kernels/winograd.h"
#include "ir/algorithm.h"

namespace torchalgo::cpu {

/// An algorithm of Winograd's minimal filtering with one tile. src and dst have the same layout.
///
/// A variant <name>.tN divides the tiles into equal blocks of at most N. With few tiles per block
/// their transforms stay in L2, with many the weights are read less often. It depends on the shape
/// which one is faster. So all N that differ are offered, as long as a thread's scratch is at most
/// 2 MiB. A plan may name the others too. Threads share the blocks, or the output channels if there
/// are fewer blocks than threads.
struct WinogradAlgorithm {
  std::string_view name;
  int version = 1;
  kernels::WinogradTile tile;        // one of kernels::kWinogradTiles
  Layout layout = Layout::kNChw16c;  // or kNhwc
};

/// Returns the strides of a tensor in nChw16c or nhwc.
[[nodiscard]] kernels::WinogradSide winograd_side(Layout layout, std::int64_t channels,
                                                  std::int64_t pixels);

/// Returns the number of tiles of the result.
[[nodiscard]] std::int64_t winograd_tiles(const kernels::WinogradTile& tile,
                                          const ConvProblem& conv);

/// Returns the reason why the tile is not faster than the definition, or an empty string.
[[nodiscard]] std::string why_slow(const kernels::WinogradTile& tile, const ConvProblem& conv);

/// Makes the algorithm. It also computes gradients with respect to src that are forward
/// convolutions.
[[nodiscard]] Algorithm make_winograd(const WinogradAlgorithm& winograd, std::string_view isa);

}  // namespace torchalgo::cpu

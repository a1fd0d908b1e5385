// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>

#include "cpu_algo/kernels/winograd.h"
#include "ir/layout.h"
#include "ir/plain_kernel.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// A variant of Winograd's minimal filtering with src and dst in one layout.
struct WinogradVariant {
  kernels::WinogradTile tile;        // one of kernels::kWinogradTiles
  Layout layout = Layout::kNChw16c;  // or kNhwc
  std::int64_t most_tiles = 14;      // in a block
};

/// Returns the strides of a tensor in nChw16c or nhwc.
[[nodiscard]] kernels::WinogradSide winograd_side(Layout layout, std::int64_t channels,
                                                  std::int64_t pixels);

/// Returns the number of tiles of the result.
[[nodiscard]] std::int64_t winograd_tiles(const kernels::WinogradTile& tile,
                                          const ConvProblem& conv);

/// Returns the bytes of the workspace of one thread.
[[nodiscard]] std::int64_t winograd_scratch_bytes(const WinogradVariant& variant,
                                                  const ConvProblem& conv);

/// Binds a convolution without dilation and groups, with the filter and stride of the tile. `isa`
/// names the instruction set of the kernels.
[[nodiscard]] PlainKernel bind_winograd(const WinogradVariant& variant, const ConvProblem& conv,
                                        std::string_view isa, std::int64_t threads);

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// One function per row of cpu_algorithms(), each defined in the file of its name.

#include <string>

#include "provider/algorithm.h"

namespace torchalgo::cpu {

// Convolutions by matrix products; `isa` chooses the kernels' build.
[[nodiscard]] Algorithm conv1x1(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm strassen1x1(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm direct(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm stem(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm im2col_gemm(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm im2row_gemm(const std::string& isa = cpu_device().isa);

// Rows whose src and dst lie in one layout; `isa` chooses the kernels' build.
[[nodiscard]] Algorithm pool(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm add(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm mul(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm activation(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm scale_shift(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm concat(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm slice(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm shuffle(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm resize(const std::string& isa = cpu_device().isa);

// Fully connected layers; `isa` likewise.
[[nodiscard]] Algorithm linear(const std::string& isa = cpu_device().isa);

// Convolutions on nChw16c; `isa` likewise.
[[nodiscard]] Algorithm depthwise(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm grouped(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm scaled_conv1x1(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm squeeze_excite(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm conv_chain(const std::string& isa = cpu_device().isa);

/// Large filters in the frequency domain, on nchw; torch carries the transforms.
[[nodiscard]] Algorithm fft();

/// Winograd's minimal filtering with the tile kernels::kWinogradTiles[index], for example
/// cpu.winograd_f4x4_3x3, with the variants .tN.
///
/// A variant .tN divides the tiles into equal blocks of at most N. Few tiles per block keep their
/// transforms in L2, many read the weights less often; which wins depends on the shape, so all N
/// that differ are offered, as long as a thread's scratch is at most 2 MiB. Threads share the
/// blocks, or the output channels if there are fewer blocks than threads.
[[nodiscard]] Algorithm winograd(int index, const std::string& isa = cpu_device().isa);

}  // namespace torchalgo::cpu

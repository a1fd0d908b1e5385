// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// One function per row of cpu_algorithms(), each defined in the file of its name.

#include <string>

#include "provider/algorithm.h"

namespace torchalgo::cpu {

// Convolutions by matrix products; `isa` chooses the kernels' build.
[[nodiscard]] Algorithm conv1x1(const std::string& isa = cpu_device().isa);
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
[[nodiscard]] Algorithm winograd_f2x2_3x3(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm winograd_f4x4_3x3(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm depthwise(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm grouped(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm scaled_conv1x1(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm squeeze_excite(const std::string& isa = cpu_device().isa);
[[nodiscard]] Algorithm conv_chain(const std::string& isa = cpu_device().isa);

}  // namespace torchalgo::cpu

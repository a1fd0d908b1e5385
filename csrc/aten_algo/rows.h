// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// One function per row of aten_algorithms(), each defined in the file of its name.

#include "provider/algorithm.h"

namespace torchalgo::aten {

[[nodiscard]] Algorithm conv();
[[nodiscard]] Algorithm conv_chain();
[[nodiscard]] Algorithm prepacked();
[[nodiscard]] Algorithm pool();
[[nodiscard]] Algorithm eltwise();
[[nodiscard]] Algorithm scale_shift();
[[nodiscard]] Algorithm concat();
[[nodiscard]] Algorithm slice();
[[nodiscard]] Algorithm shuffle();
[[nodiscard]] Algorithm resize();
[[nodiscard]] Algorithm linear();

}  // namespace torchalgo::aten

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "provider/algorithm.h"

namespace torchalgo {

/// Our own CPU kernels. A new one: a file that defines its row, its declaration in rows.h and its
/// line in list.cpp.
[[nodiscard]] const Algorithms& cpu_algorithms();

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "provider/algorithm.h"

namespace torchalgo {

/// What PyTorch itself has. Together these rows offer every forward problem and every transposed
/// convolution in nchw without a fused epilogue: the path that always works. A new row: a file that
/// defines it, its declaration in rows.h and its line in list.cpp.
[[nodiscard]] const Algorithms& aten_algorithms();

}  // namespace torchalgo

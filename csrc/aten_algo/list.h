// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/algorithm.h"

namespace torchalgo {

/// Returns the algorithms that PyTorch itself has. Together they offer every forward problem and
/// every transposed convolution in nchw without a fused epilogue, so they are the fallback that
/// always works. A new algorithm is one file that defines it and one line in list.cpp.
[[nodiscard]] const Algorithms& aten_algorithms();

}  // namespace torchalgo

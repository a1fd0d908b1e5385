// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

#include "ir/algorithm.h"
#include "provider/cuda_library.h"

namespace torchalgo {

/// Returns the algorithms that run our kernels for GPUs (csrc/cuda). They compute what
/// torchalgo uses no engine of cuDNN for, and depthwise convolutions. Each call is one launch.
[[nodiscard]] const Algorithms& cuda_algorithms();

/// Returns the same algorithms with the kernels of `library`, which is called at the first problem
/// of a GPU.
[[nodiscard]] Algorithms cuda_algorithms(const std::function<const CudaLibrary&()>& library);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

#include "ir/algorithm.h"
#include "provider/cuda_library.h"

namespace torchalgo::layout {

/// Returns layout.cuda_tiled, which runs the tiled transposes of `library` (csrc/cuda): nchw <->
/// nhwc of f32, f16, bf16, 4-D or 5-D. `library` is called at the first CUDA problem.
[[nodiscard]] Algorithm cuda_tiled_of(const std::function<const CudaLibrary&()>& library);

}  // namespace torchalgo::layout

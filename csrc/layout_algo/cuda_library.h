// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "provider/algorithm.h"

namespace torchalgo::layout {

/// The functions of libtorchalgo_cuda.so, or a test's replacement.
struct CudaLibrary {
  /// torchalgo_cuda_transform of cuda/transform.h. If it is null, `absence` says why.
  std::function<int(const void* src, void* dst, int src_type, int dst_type, std::int64_t images,
                    std::int64_t rows, std::int64_t cols, void* stream)>
      transform;
  std::string absence;
};

/// Loads the library from the folder of libtorchalgo.so. It is loaded once per process.
[[nodiscard]] const CudaLibrary& cuda_library();

/// Returns layout.cuda_tiled, which runs the tiled transposes of `library` (csrc/cuda): nchw <->
/// nhwc of f32, f16, bf16, 4-D or 5-D. `library` is called at the first CUDA problem.
[[nodiscard]] Algorithm cuda_tiled_of(const std::function<const CudaLibrary&()>& library);

}  // namespace torchalgo::layout

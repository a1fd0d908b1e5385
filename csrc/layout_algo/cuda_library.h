// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace torchalgo::layout {

/// libtorchalgo_cuda.so, or a test's stand-in.
struct CudaLibrary {
  /// torchalgo_cuda_transform of cuda/transform.h; null: `absence` says why.
  std::function<int(const void* src, void* dst, int src_type, int dst_type, std::int64_t images,
                    std::int64_t rows, std::int64_t cols, void* stream)>
      transform;
  std::string absence;
};

/// Loads the library that lies beside libtorchalgo.so; once per process.
[[nodiscard]] const CudaLibrary& cuda_library();

}  // namespace torchalgo::layout

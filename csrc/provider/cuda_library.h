// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace torchalgo {

/// The functions of libtorchalgo_cuda.so (cuda/interface.h), or a test's replacement. If they are
/// null, `absence` says why.
struct CudaLibrary {
  std::function<int(const void* src, void* dst, int src_type, int dst_type, std::int64_t images,
                    std::int64_t rows, std::int64_t cols, void* stream)>
      transform;
  std::function<std::uint64_t(int device, void* stream)> open_pool;
  std::function<void(int device, std::uint64_t pool)> close_pool, free_pool;
  std::string absence;
};

/// Loads the library from the folder of libtorchalgo.so. It is loaded once per process.
[[nodiscard]] const CudaLibrary& cuda_library();

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>

#include "cuda/interface.h"

namespace torchalgo {

/// The functions of libtorchalgo_cuda.so (cuda/interface.h), or a test's replacement. If they are
/// null, `absence` says why.
struct CudaLibrary {
  std::function<decltype(torchalgo_cuda_transform)> transform;
  std::function<decltype(torchalgo_cuda_pool)> pool;
  std::function<decltype(torchalgo_cuda_pointwise)> pointwise;
  std::function<decltype(torchalgo_cuda_rows)> rows;
  std::function<decltype(torchalgo_cuda_depthwise)> depthwise;
  std::function<decltype(torchalgo_cuda_layer_norm)> layer_norm;
  std::function<decltype(torchalgo_cuda_open_pool)> open_pool;
  std::function<decltype(torchalgo_cuda_close_pool)> close_pool;
  std::function<decltype(torchalgo_cuda_free_pool)> free_pool;
  std::string absence;
};

/// Loads the library from the folder of libtorchalgo.so. It is loaded once per process.
[[nodiscard]] const CudaLibrary& cuda_library();

}  // namespace torchalgo

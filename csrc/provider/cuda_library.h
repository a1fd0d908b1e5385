// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cuda/interface.h"
#include "provider/kernel.h"

namespace torchalgo {

/// The functions of libtorchalgo_cuda.so (cuda/interface.h), or a test's replacement. If they are
/// null, `absence` says why.
struct CudaLibrary {
  std::function<decltype(torchalgo_cuda_transform)> transform;
  std::function<decltype(torchalgo_cuda_pool)> pool;
  std::function<decltype(torchalgo_cuda_pointwise)> pointwise;
  std::function<decltype(torchalgo_cuda_rows)> rows;
  std::function<decltype(torchalgo_cuda_depthwise)> depthwise;
  std::function<decltype(torchalgo_cuda_open_pool)> open_pool;
  std::function<decltype(torchalgo_cuda_close_pool)> close_pool;
  std::function<decltype(torchalgo_cuda_free_pool)> free_pool;
  std::string absence;
};

/// Loads the library from the folder of libtorchalgo.so. It is loaded once per process.
[[nodiscard]] const CudaLibrary& cuda_library();

/// Returns how a kernel of the library reads elements of this type; nullopt if it cannot.
[[nodiscard]] std::optional<cuda::ElementType> cuda_element_type(DType dtype);

/// Returns why no kernel of the library takes a problem with elements of this type; "" if one may.
[[nodiscard]] std::string refuse_cuda_kernel(const CudaLibrary& library, DType dtype);

/// Returns a kernel that makes the GPU of the result the current one and calls `launch`. This
/// enqueues on `stream` and returns a cudaError_t. The caller adds what packs weights.
[[nodiscard]] Kernel cuda_kernel(const Problem& problem, const Primitive& primitive,
                                 std::function<int(const KernelArgs& args, void* stream)> launch);

}  // namespace torchalgo

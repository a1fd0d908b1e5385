// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

// The interface of libtorchalgo_cuda.so. It is plain C, since libtorchalgo.so finds it by dlsym. It
// links CUDA's runtime and not torch, and is built only where nvcc is.

namespace torchalgo::cuda {

inline constexpr int kTransformAbi = 1;  // raised when a signature below changes

enum ElementType : int { kFloat = 0, kHalf = 1, kBfloat16 = 2 };

}  // namespace torchalgo::cuda

extern "C" {

/// Returns kTransformAbi of the library.
int torchalgo_cuda_abi();

/// Enqueues dst [images, cols, rows] = transpose of src [images, rows, cols] on `stream`
/// (cudaStream_t). Both are dense on the current device. Elements are cast from src_type to
/// dst_type with rounding to nearest even. The types are equal, or one of them is kFloat. Sizes are
/// >= 0, and their product fits int64.
/// @return  a cudaError_t; 1 (cudaErrorInvalidValue) for other types or sizes.
int torchalgo_cuda_transform(const void* src, void* dst, int src_type, int dst_type,
                             std::int64_t images, std::int64_t rows, std::int64_t cols,
                             void* stream);

}  // extern "C"

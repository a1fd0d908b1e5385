// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

// The interface of libtorchalgo_cuda.so. It is plain C, since libtorchalgo.so finds it by dlsym. It
// is built only where nvcc is.

namespace torchalgo::cuda {

inline constexpr int kInterfaceAbi = 2;  // raised when a signature below changes

enum ElementType : int { kFloat = 0, kHalf = 1, kBfloat16 = 2 };

}  // namespace torchalgo::cuda

extern "C" {

/// Returns kInterfaceAbi of the library.
int torchalgo_cuda_abi();

/// Enqueues dst [images, cols, rows] = transpose of src [images, rows, cols] on `stream`
/// (cudaStream_t). Both are dense on the current device. Elements are cast from src_type to
/// dst_type with rounding to nearest even. The types are equal, or one of them is kFloat. Sizes are
/// >= 0, and their product fits int64.
/// @return  a cudaError_t; 1 (cudaErrorInvalidValue) for other types or sizes.
int torchalgo_cuda_transform(const void* src, void* dst, int src_type, int dst_type,
                             std::int64_t images, std::int64_t rows, std::int64_t cols,
                             void* stream);

/// Makes torch's allocator take the memory of `stream` from a private pool until
/// torchalgo_cuda_close_pool(). No other tensor gets memory of the pool until
/// torchalgo_cuda_free_pool().
/// @return  the pool's number; 0 if torch has no allocator yet.
std::uint64_t torchalgo_cuda_open_pool(int device, void* stream);
void torchalgo_cuda_close_pool(int device, std::uint64_t pool);
void torchalgo_cuda_free_pool(int device, std::uint64_t pool);

}  // extern "C"

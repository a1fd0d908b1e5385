// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

// A GPU in software, for processes that have none. A process preloads three libraries:
// libcudart.so.13 (cuda_runtime.cpp), libcuda.so.1 (cuda_driver.cpp) and libcudnn.so.9 (cudnn.cpp).
// torch then finds an H100. Its memory is that of the host, where unwritten bytes are 0xff, which
// is NaN. A stream runs work at once, and a stream that captures a graph keeps it instead. Kernels
// of CUDA are not run: launches are logged, and tests/software_gpu/python computes torch's own
// operations on the CPU. The kernels of csrc/cuda are computed here.
//
// Environment variables:
//   SOFTWARE_GPU_COUNT  the number of GPUs, 1 by default
//   SOFTWARE_GPU_EXCLUSIVE  a file: the first process that locks it is the only one that may use
//                       the GPUs, as in the compute mode "exclusive process"
//   SOFTWARE_GPU_LOG    a file; each call of interest appends a line
//   SOFTWARE_GPU_FAULT  "FUNCTION:N:STATUS": the N-th call of FUNCTION, from 1, returns STATUS.
//   After
//                       700 and 719, the errors of kernels, all later calls fail too.
namespace software_gpu {

inline constexpr int kStreamingMultiprocessors = 132;
inline constexpr const char* kName = "NVIDIA H100 80GB HBM3";
inline constexpr std::size_t kTotalBytes = 84'942'979'072;
// An H100 has 50 times as much. The timer writes twice as many bytes before each sample.
inline constexpr int kL2Bytes = 1 << 20;

}  // namespace software_gpu

extern "C" {

/// Runs `work` at once, or keeps it if `stream` captures a graph.
/// @return  an error if the capture was invalidated.
cudaError_t software_gpu_enqueue(cudaStream_t stream, const std::function<void()>* work);

/// Calls `work(data)` at once, or keeps the call if `stream` captures a graph. Python uses this
/// one.
/// @return  an error if the capture was invalidated.
cudaError_t software_gpu_enqueue_call(cudaStream_t stream, void (*work)(void*), void* data);

/// Returns the status that SOFTWARE_GPU_FAULT wants for this call of `function`, or 0.
int software_gpu_fault(const char* function);

/// Appends a line to SOFTWARE_GPU_LOG.
void software_gpu_log(const char* line);

}  // extern "C"

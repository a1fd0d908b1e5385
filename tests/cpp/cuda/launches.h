// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include "cuda/software_gpu.h"

// Launches of the tests: they run on the CPU, and are kept.

namespace software_gpu {

struct Launch {
  unsigned blocks, threads;
  std::size_t shared_bytes;
  cudaStream_t stream;
};
inline std::vector<Launch> launches;  // of the test
inline unsigned most_blocks = ~0U;    // a launch gets no more, so that blocks have more tiles
inline int multiprocessors = 132;     // 0: no number of threads is small for this GPU
inline cudaError_t next_status = cudaSuccess;
inline int errors_cleared = 0;

}  // namespace software_gpu

extern "C" inline cudaError_t cudaGetLastError() {
  ++software_gpu::errors_cleared;
  return cudaSuccess;
}

extern "C" inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

extern "C" inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  EXPECT_EQ(attribute, cudaDevAttrMultiProcessorCount);
  *value = software_gpu::multiprocessors;
  return cudaSuccess;
}

// The one of the header would hand the kernel to the driver.
#define cudaLaunchKernelEx launch_in_software

template <typename... Parameters, typename... Arguments>
cudaError_t launch_in_software(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  using namespace software_gpu;
  launches.push_back(
      {config->gridDim.x, config->blockDim.x, config->dynamicSmemBytes, config->stream});
  if (next_status != cudaSuccess) return std::exchange(next_status, cudaSuccess);
  EXPECT_LE(config->dynamicSmemBytes, kSharedBytes);
  run_grid(dim3(std::min(config->gridDim.x, most_blocks)), config->blockDim.x,
           [&] { kernel(arguments...); });
  return cudaSuccess;
}

// SPDX-License-Identifier: BSD-3-Clause
// libcuda.so.1 of the GPU in software: the few functions that torch and torchalgo ask of the driver
// itself. CMake adds functions that refuse for all others.
#include <cuda.h>

#include <cstddef>
#include <cstdio>

#include "gpu.h"

namespace {
const auto kContext = reinterpret_cast<CUcontext>(0x10);
}

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int index) {
  *device = index;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, static_cast<std::size_t>(size), "%s", software_gpu::kName);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  *bytes = software_gpu::kTotalBytes;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = 1;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = kContext;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = kContext;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "an error of the GPU in software";
  return CUDA_SUCCESS;
}

}  // extern "C"

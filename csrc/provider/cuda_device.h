// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "provider/cuda_runtime.h"
#include "provider/device.h"

namespace torchalgo {

/// GPU `index` of this process: name, "sm_90", size of L2, and its properties as cuDNN's device
/// property JSON, with the provenance "this machine".
/// @throws Error  naming the devices there are, if there is no such one.
[[nodiscard]] Device read_cuda_device(const CudaRuntime& runtime, int index);

/// The same of this process's CUDA, kept from the first call on.
/// @throws Error  if torch has no CUDA, or finds no GPU, with how to mend it.
[[nodiscard]] const Device& cuda_device(int index);

/// Returns the machine behind a torch device: cpu_device() or cuda_device().
/// @throws Error  if it is another kind of device.
[[nodiscard]] Device device_of(at::Device device);

/// Returns the torch device of `device`. @throws Error  if it is only described (index -1).
[[nodiscard]] at::Device torch_device(const Device& device);

/// Returns torch's current stream on `device`, as cudaStream_t.
[[nodiscard]] void* current_cuda_stream(at::Device device);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "ir/device.h"
#include "provider/cuda_runtime.h"

namespace torchalgo {

/// Returns GPU `index` of this process: its name, "sm_90", size of L2, and properties as cuDNN's
/// device property JSON. The provenance is "this machine".
/// @throws Error  if there is no such device. The text names those that exist.
[[nodiscard]] Device read_cuda_device(const CudaRuntime& runtime, int index);

/// Returns GPU `index` by the CUDA runtime of this process. The result is cached at the first call.
/// @throws Error  if torch has no CUDA or finds no GPU. The text says how to fix it.
[[nodiscard]] const Device& cuda_device(int index);

/// Returns the machine behind a torch device: cpu_device() or cuda_device().
/// @throws Error  if it is another kind of device.
[[nodiscard]] Device device_of(at::Device device);

/// Returns the torch device of `device`. @throws Error  if it is only described (index -1).
[[nodiscard]] at::Device torch_device(const Device& device);

/// Returns torch's current stream on `device`, as cudaStream_t.
[[nodiscard]] void* current_cuda_stream(at::Device device);

/// Registers PyTorch's guard for fake GPUs, one that lives as long as the process. Does nothing in
/// a build of PyTorch without CUDA. Call it only if there is no GPU.
///
/// PyTorch 2.11 registers such a guard when a mode of fake tensors begins. It belongs to the
/// thread, so the next mode reads freed memory if that thread has ended (pytorch/pytorch#178950).
void keep_fake_cuda_guard();

}  // namespace torchalgo

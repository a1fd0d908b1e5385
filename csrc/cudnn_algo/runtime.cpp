// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/runtime.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "base/error.h"
#include "provider/cuda_runtime.h"

namespace torchalgo::cudnn {
namespace {

// Calls `function` and turns torch's errors into torchalgo's, without the backtrace in their text.
template <typename Function>
auto with_error(const Function& function) {
  try {
    return function();
  } catch (const c10::Error& error) {
    throw Error(fmt::format("TA5102 cuDNN cannot run: {}", error.what_without_backtrace()));
  }
}

// Returns torch's functions for the GPUs of this process.
c10::impl::VirtualGuardImpl torch_cuda() {
  TORCHALGO_CHECK(c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA),
                  "TA5001 cuDNN cannot run: this torch has no CUDA: install a CUDA build of torch");
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA);
}

int torch_device() {
  return with_error([] { return static_cast<int>(torch_cuda().getDevice().index()); });
}

Stream torch_stream() {
  return with_error([] {
    const c10::impl::VirtualGuardImpl guard = torch_cuda();
    return guard.getStream(guard.getDevice()).native_handle();
  });
}

bool is_torch_capturing() {
  static const CudaRuntime& runtime = cuda_runtime();  // looked up once: each run asks
  return is_capturing(runtime, torch_stream());
}

std::shared_ptr<void> guard_device(int index) {
  if (index < 0 || index == torch_device()) return nullptr;
  return with_error([index]() -> std::shared_ptr<void> {
    return std::make_shared<c10::DeviceGuard>(
        c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)));
  });
}

}  // namespace

Runtime torch_runtime() { return {torch_device, torch_stream, is_torch_capturing, guard_device}; }

}  // namespace torchalgo::cudnn

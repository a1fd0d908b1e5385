// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/runtime.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <initializer_list>
#include <vector>

#include "base/error.h"
#include "provider/symbols.h"

namespace torchalgo::cudnn {
namespace {

constexpr std::initializer_list<const char*> kRuntimes = {"libcudart.so.13", "libcudart.so.12",
                                                          "libcudart.so"};

// A function of a library that torch has loaded. It is looked up once.
template <typename Function>
class MappedFunction {
 public:
  MappedFunction(std::initializer_list<const char*> libraries, const char* name)
      : libraries_(libraries), name_(name) {}

  /// @throws Error  if no such library is mapped, or it lacks the function.
  [[nodiscard]] Function* get() {
    Function* function = found_.load();
    if (function != nullptr) return function;
    for (const char* library : libraries_) {
      void* const mapped = find_mapped_library({library});
      void* const symbol = mapped != nullptr ? dlsym(mapped, name_) : nullptr;
      if (symbol == nullptr) continue;
      function = reinterpret_cast<Function*>(symbol);
      found_.store(function);
      return function;
    }
    throw Error(
        fmt::format("TA5101 cuDNN cannot run: torch has loaded no {} with {}: install a CUDA build "
                    "of torch with cuDNN",
                    libraries_.front(), name_));
  }

 private:
  std::vector<const char*> libraries_;
  const char* name_;
  std::atomic<Function*> found_ = nullptr;
};

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
  static MappedFunction<int(Stream, int*)> is_capturing(kRuntimes, "cudaStreamIsCapturing");
  constexpr int kNone = 0;  // cudaStreamCaptureStatusNone
  int capture = kNone;
  const int status = is_capturing.get()(torch_stream(), &capture);
  // These are the errors cudaErrorStreamCapture...: the default stream was queried while another
  // stream captures.
  if (status >= 900 && status <= 908) {
    static MappedFunction<int()> last_error(kRuntimes, "cudaGetLastError");
    static_cast<void>(last_error.get()());  // or the next launch of a kernel would report it
    return true;
  }
  TORCHALGO_CHECK(status == 0,
                  "TA5004 cuDNN cannot run: cudaStreamIsCapturing failed with CUDA error {}. An "
                  "earlier kernel may have caused it: run with CUDA_LAUNCH_BLOCKING=1 to find it",
                  status);
  return capture != kNone;
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

// SPDX-License-Identifier: BSD-3-Clause
#include "provider/cuda_runtime.h"

#include <fmt/format.h>

#include <mutex>

#include "base/error.h"
#include "provider/symbols.h"

namespace torchalgo {
namespace {

void find_runtime_functions(Symbols& symbols, CudaRuntime& runtime) {
  symbols.require(runtime.get_device_count, "cudaGetDeviceCount");
  symbols.require(runtime.get_attribute, "cudaDeviceGetAttribute");
  symbols.require(runtime.get_driver_version, "cudaDriverGetVersion");
  symbols.require(runtime.get_runtime_version, "cudaRuntimeGetVersion");
  symbols.require(runtime.get_error_string, "cudaGetErrorString");
  symbols.require(runtime.get_last_error, "cudaGetLastError");
  symbols.require(runtime.synchronize, "cudaStreamSynchronize");
  symbols.require(runtime.get_capture_status, "cudaStreamIsCapturing");
  symbols.require(runtime.begin_capture, "cudaStreamBeginCapture");
  symbols.require(runtime.end_capture, "cudaStreamEndCapture");
  // cudaGraphInstantiate has other arguments in CUDA 11 than since 12; this one never changed.
  symbols.require(runtime.instantiate, "cudaGraphInstantiateWithFlags");
  symbols.require(runtime.launch, "cudaGraphLaunch");
  symbols.require(runtime.destroy_exec, "cudaGraphExecDestroy");
  symbols.require(runtime.destroy_graph, "cudaGraphDestroy");
}

// The runtime maps the driver when it is first used, so the driver is looked up at each call.
template <typename Function, typename... Arguments>
int call_driver(const char* name, Arguments... arguments) {
  constexpr int kInsufficientDriver = 35;  // cudaErrorInsufficientDriver
  static void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  auto* const function = driver ? reinterpret_cast<Function*>(dlsym(driver, name)) : nullptr;
  return function ? function(arguments...) : kInsufficientDriver;
}

LoadedCudaRuntime look_up() {
  void* const library = find_mapped_library({"libcudart.so.13", "libcudart.so.12", "libcudart.so"});
  if (library == nullptr) return {nullptr, "this torch has no CUDA: no libcudart is loaded"};
  auto runtime = std::make_shared<CudaRuntime>();
  Symbols symbols(library);
  find_runtime_functions(symbols, *runtime);
  if (!symbols.missing().empty()) {
    return {nullptr, fmt::format("torch's libcudart has no {}", symbols.missing())};
  }
  runtime->get_name = [](char* name, int size, int device) {
    return call_driver<int(char*, int, int)>("cuDeviceGetName", name, size, device);
  };
  runtime->get_total_memory = [](std::size_t* bytes, int device) {
    return call_driver<int(std::size_t*, int)>("cuDeviceTotalMem_v2", bytes, device);
  };
  return {std::move(runtime), {}};
}

}  // namespace

LoadedCudaRuntime load_cuda_runtime() {
  static std::mutex mutex;
  static LoadedCudaRuntime loaded;
  const std::lock_guard lock(mutex);
  if (loaded.runtime == nullptr) loaded = look_up();
  return loaded;
}

const CudaRuntime& cuda_runtime() {
  const LoadedCudaRuntime loaded = load_cuda_runtime();
  TORCHALGO_CHECK(loaded.runtime, "TA5001 torchalgo: {}: install a CUDA build of torch",
                  loaded.absence);
  return *loaded.runtime;  // the process keeps it
}

void check_cuda(const CudaRuntime& runtime, int status, const char* function) {
  TORCHALGO_CHECK(status == 0, "TA5004 torchalgo: {} failed: {} ({})", function,
                  runtime.get_error_string ? runtime.get_error_string(status) : "no text", status);
}

bool is_capturing(const CudaRuntime& runtime, CudaRuntime::Stream stream) {
  int capture = 0;
  const int status = runtime.get_capture_status(stream, &capture);
  // These are the errors cudaErrorStreamCapture...: the default stream was asked while another
  // stream captures.
  if (status >= 900 && status <= 908) {
    static_cast<void>(runtime.get_last_error());  // or the next launch of a kernel would report it
    return true;
  }
  check_cuda(runtime, status, "cudaStreamIsCapturing");
  return capture != 0;
}

}  // namespace torchalgo

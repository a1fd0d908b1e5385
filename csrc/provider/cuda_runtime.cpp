// SPDX-License-Identifier: BSD-3-Clause
#include "provider/cuda_runtime.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <mutex>

#include "base/error.h"

namespace torchalgo {
namespace {

// Ends with the missing name in `missing` if a library lacks a function.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void find(const char* name, std::function<Function>& to) {
    auto* const symbol = reinterpret_cast<Function*>(dlsym(library_, name));
    if (symbol != nullptr) {
      to = symbol;
    } else if (missing.empty()) {
      missing = name;
    }
  }

  std::string missing;

 private:
  void* library_;
};

void* find_mapped_runtime() {
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so"}) {
    if (void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return library;
  }
  return nullptr;
}

void find_runtime_functions(Symbols& symbols, CudaRuntime& runtime) {
  symbols.find("cudaGetDeviceCount", runtime.get_device_count);
  symbols.find("cudaDeviceGetAttribute", runtime.get_attribute);
  symbols.find("cudaDriverGetVersion", runtime.get_driver_version);
  symbols.find("cudaRuntimeGetVersion", runtime.get_runtime_version);
  symbols.find("cudaGetErrorString", runtime.get_error_string);
  symbols.find("cudaGetLastError", runtime.get_last_error);
  symbols.find("cudaStreamBeginCapture", runtime.begin_capture);
  symbols.find("cudaStreamEndCapture", runtime.end_capture);
  // cudaGraphInstantiate has other arguments in CUDA 11 than since 12; this one never changed.
  symbols.find("cudaGraphInstantiateWithFlags", runtime.instantiate);
  symbols.find("cudaGraphLaunch", runtime.launch);
  symbols.find("cudaGraphExecDestroy", runtime.destroy_exec);
  symbols.find("cudaGraphDestroy", runtime.destroy_graph);
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
  void* const library = find_mapped_runtime();
  if (library == nullptr) return {nullptr, "this torch has no CUDA: no libcudart is loaded"};
  auto runtime = std::make_shared<CudaRuntime>();
  Symbols symbols(library);
  find_runtime_functions(symbols, *runtime);
  if (!symbols.missing.empty()) {
    return {nullptr, fmt::format("torch's libcudart has no {}", symbols.missing)};
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
  TORCHALGO_CHECK(loaded.runtime, "torchalgo: {}: install a CUDA build of torch", loaded.absence);
  return *loaded.runtime;  // the process keeps it
}

void check_cuda(const CudaRuntime& runtime, int status, const char* function) {
  TORCHALGO_CHECK(status == 0, "torchalgo: {} failed: {} ({})", function,
                  runtime.get_error_string ? runtime.get_error_string(status) : "no text", status);
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
// libcudart.so.13 of the GPU in software: the functions that torch and torchalgo call. CMake adds
// functions that refuse for all others.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpu.h"
#include "kernels.h"
#include "streams.h"

using namespace software_gpu;

namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local std::vector<std::tuple<dim3, dim3, std::size_t, cudaStream_t>> configurations;

Streams& streams() {
  static auto* const all = new Streams;  // threads may end after static objects
  return *all;
}

cudaError_t remember(cudaError_t status) {
  if (status != cudaSuccess && status != cudaErrorNotReady) last_error = status;
  return status;
}

// Returns the fault that the test injects for `function`, or else runs `body`.
template <typename Body>
cudaError_t call(const char* function, const Body& body) {
  const int fault = software_gpu_fault(function);
  return remember(fault != 0 ? static_cast<cudaError_t>(fault) : body());
}

// Runs `body` as `call` does. Returns an error instead if a capture forbids this call.
template <typename Body>
cudaError_t unsafe(const char* function, const Body& body) {
  return call(function, [&] {
    const cudaError_t status = streams().unsafe_call();
    return status != cudaSuccess ? status : body();
  });
}

template <typename T>
cudaError_t give(T* where, T value) {
  if (where == nullptr) return cudaErrorInvalidValue;
  *where = value;
  return cudaSuccess;
}

// Memory of the GPU. Freed memory is unmapped, so that a later use is a crash.
class Memory {
 public:
  cudaError_t allocate(void** where, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    constexpr std::size_t kMostBytes = std::size_t{6} << 30;
    if (bytes > kMostBytes - in_use_) return cudaErrorMemoryAllocation;
    void* const found = mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) return cudaErrorMemoryAllocation;
    std::memset(found, 0xff, bytes);
    blocks_[static_cast<char*>(found)] = bytes;
    in_use_ += bytes;
    log_use();
    *where = found;
    return cudaSuccess;
  }
  cudaError_t free(void* pointer) {
    if (pointer == nullptr) return cudaSuccess;
    const std::lock_guard lock(mutex_);
    const auto at = blocks_.find(static_cast<char*>(pointer));
    if (at == blocks_.end()) return cudaErrorInvalidValue;
    munmap(pointer, std::max<std::size_t>(at->second, 1));
    in_use_ -= at->second;
    blocks_.erase(at);
    log_use();
    return cudaSuccess;
  }
  bool owns(const void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto* const address = static_cast<const char*>(pointer);
    auto at = blocks_.upper_bound(const_cast<char*>(address));
    if (at == blocks_.begin()) return false;
    --at;
    return address < at->first + at->second;
  }
  std::size_t free_bytes() {
    const std::lock_guard lock(mutex_);
    return kTotalBytes - in_use_;
  }

 private:
  void log_use() const {
    software_gpu_log(
        ("memory " + std::to_string(getpid()) + " " + std::to_string(in_use_)).c_str());
  }

  std::mutex mutex_;
  std::map<char*, std::size_t> blocks_;
  std::size_t in_use_ = 0;
};

Memory& memory() {
  static auto* const all = new Memory;
  return *all;
}

// Returns false if the GPU has one process and this is another one. The first one holds a lock.
bool may_use_gpu() {
  static const bool kMay = [] {
    const char* const path = std::getenv("SOFTWARE_GPU_EXCLUSIVE");
    if (path == nullptr) return true;
    const int file = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    return file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0;
  }();
  return kMay;
}

// The names of kernels by what the host calls them.
std::map<const void*, std::string>& kernel_names() {
  static auto* const names = new std::map<const void*, std::string>;
  return *names;
}

std::string text_of(const dim3& d) {
  return std::to_string(d.x) + "x" + std::to_string(d.y) + "x" + std::to_string(d.z);
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** arguments,
                   std::size_t shared_bytes, cudaStream_t stream) {
  const auto at = kernel_names().find(function);
  if (at == kernel_names().end()) return cudaErrorInvalidDeviceFunction;
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || shared_bytes > 232448) {
    return cudaErrorInvalidConfiguration;
  }
  const Work work = kernel_work(at->second, {grid, block.x}, arguments);
  const char* const known = work ? "launch " : "launch-without-effect ";
  software_gpu_log((known + at->second + " " + text_of(grid) + " " + text_of(block)).c_str());
  return streams().enqueue_kernel(
      stream, work ? work : [] {});
}

int device_count() {
  const char* const text = std::getenv("SOFTWARE_GPU_COUNT");
  return text == nullptr ? 1 : std::atoi(text);
}

bool is_device(int device) { return device >= 0 && device < device_count(); }

const std::map<int, int>& attributes() {
  static const std::map<int, int> kValues = {
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxBlockDimX, 1024},
      {cudaDevAttrMaxBlockDimY, 1024},
      {cudaDevAttrMaxBlockDimZ, 64},
      {cudaDevAttrMaxGridDimX, 2147483647},
      {cudaDevAttrMaxGridDimY, 65535},
      {cudaDevAttrMaxGridDimZ, 65535},
      {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMaxRegistersPerBlock, 65536},
      {cudaDevAttrClockRate, 1980000},
      {cudaDevAttrMultiProcessorCount, kStreamingMultiprocessors},
      {cudaDevAttrMemoryClockRate, 2619000},
      {cudaDevAttrGlobalMemoryBusWidth, 5120},
      {cudaDevAttrL2CacheSize, kL2Bytes},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
      {cudaDevAttrUnifiedAddressing, 1},
      {cudaDevAttrComputeCapabilityMajor, 9},
      {cudaDevAttrComputeCapabilityMinor, 0},
      {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
      {cudaDevAttrCooperativeLaunch, 1},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
      {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
      {cudaDevAttrReservedSharedMemoryPerBlock, 1024},
  };
  return kValues;
}

cudaError_t record(cudaEvent_t handle, cudaStream_t stream_handle) {
  auto* const event = reinterpret_cast<Event*>(handle);
  {
    const std::lock_guard lock(streams().mutex);
    event->capture = streams().of(stream_handle).capture;
    event->is_recorded = true;
    if (event->capture == nullptr) {
      *event->time = std::chrono::steady_clock::now();
      return cudaSuccess;
    }
  }
  return streams().enqueue(stream_handle,
                           [time = event->time] { *time = std::chrono::steady_clock::now(); });
}

cudaError_t wait_for(cudaEvent_t handle) {
  const auto* const event = reinterpret_cast<const Event*>(handle);
  return event->capture != nullptr ? cudaErrorCapturedEvent : cudaSuccess;
}

}  // namespace

cudaError_t software_gpu_enqueue(cudaStream_t stream, const Work* work) {
  return remember(streams().enqueue_kernel(stream, *work));
}

cudaError_t software_gpu_enqueue_call(cudaStream_t stream, void (*work)(void*), void* data) {
  return remember(streams().enqueue_kernel(stream, [work, data] { work(data); }));
}

extern "C" {

// ---- devices -----------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", [&] { return give(count, device_count()); });
}
cudaError_t cudaGetDevice(int* device) { return give(device, Streams::current_device); }
cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    Streams::current_device = device;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call("cudaDeviceGetAttribute", [&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    const auto at = attributes().find(attribute);
    return give(value, at != attributes().end() ? at->second : 0);
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* result, int device) {
  if (!is_device(device)) return remember(cudaErrorInvalidDevice);
  const auto get = [](int attribute) { return attributes().at(attribute); };
  cudaDeviceProp all = {};
  std::strncpy(all.name, kName, sizeof all.name - 1);
  all.totalGlobalMem = kTotalBytes;
  all.sharedMemPerBlock = get(cudaDevAttrMaxSharedMemoryPerBlock);
  all.sharedMemPerBlockOptin = get(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  all.sharedMemPerMultiprocessor = get(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  all.regsPerBlock = get(cudaDevAttrMaxRegistersPerBlock);
  all.regsPerMultiprocessor = get(cudaDevAttrMaxRegistersPerMultiprocessor);
  all.warpSize = get(cudaDevAttrWarpSize);
  all.maxThreadsPerBlock = get(cudaDevAttrMaxThreadsPerBlock);
  all.maxThreadsPerMultiProcessor = get(cudaDevAttrMaxThreadsPerMultiProcessor);
  for (int i = 0; i < 3; ++i) {
    all.maxThreadsDim[i] = get(cudaDevAttrMaxBlockDimX + i);
    all.maxGridSize[i] = get(cudaDevAttrMaxGridDimX + i);
  }
  all.major = 9;
  all.multiProcessorCount = kStreamingMultiprocessors;
  all.l2CacheSize = kL2Bytes;
  all.memoryBusWidth = get(cudaDevAttrGlobalMemoryBusWidth);
  all.unifiedAddressing = 1;
  return give(result, all);
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int /*device*/) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:00:00.0");
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return give(can, 0); }
cudaError_t cudaDriverGetVersion(int* version) { return give(version, 13000); }
cudaError_t cudaRuntimeGetVersion(int* version) { return give(version, CUDART_VERSION); }
cudaError_t cudaDeviceSynchronize() {
  return unsafe("cudaDeviceSynchronize", [] { return cudaSuccess; });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return give(least, 0) == cudaSuccess ? give(greatest, -5) : cudaErrorInvalidValue;
}
cudaError_t cudaMemGetInfo(std::size_t* unused, std::size_t* total) {
  return give(unused, memory().free_bytes()) == cudaSuccess ? give(total, kTotalBytes)
                                                            : cudaErrorInvalidValue;
}

// ---- errors ------------------------------------------------------------------------------------

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  static thread_local std::string text;
  text = "cudaError" + std::to_string(error);
  return text.c_str();
}
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  text = "error " + std::to_string(error) + " of the GPU in software";
  return text.c_str();
}

// ---- memory ------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** where, std::size_t bytes) {
  return unsafe("cudaMalloc", [&] {
    return may_use_gpu() ? memory().allocate(where, bytes) : cudaErrorDevicesUnavailable;
  });
}
cudaError_t cudaFree(void* pointer) {
  return unsafe("cudaFree", [&] { return memory().free(pointer); });
}
cudaError_t cudaHostAlloc(void** where, std::size_t bytes, unsigned /*flags*/) {
  return unsafe("cudaHostAlloc", [&] {
    *where = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *where != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}
cudaError_t cudaFreeHost(void* pointer) {
  return unsafe("cudaFreeHost", [&] {
    std::free(pointer);
    return cudaSuccess;
  });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* result, const void* pointer) {
  cudaPointerAttributes found = {};
  const bool is_here = memory().owns(pointer);
  found.type = is_here ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  if (is_here) found.devicePointer = const_cast<void*>(pointer);
  return give(result, found);
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return call("cudaMemcpyAsync",
              [&] { return streams().enqueue(stream, [=] { std::memmove(dst, src, bytes); }); });
}
cudaError_t cudaMemcpy(void* dst, const void* src, std::size_t bytes, cudaMemcpyKind) {
  return unsafe("cudaMemcpy", [&] {
    std::memmove(dst, src, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMemcpyPeerAsync(void* dst, int, const void* src, int, std::size_t bytes,
                                cudaStream_t stream) {
  return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemsetAsync(void* dst, int value, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync",
              [&] { return streams().enqueue(stream, [=] { std::memset(dst, value, bytes); }); });
}
cudaError_t cudaMemset(void* dst, int value, std::size_t bytes) {
  return cudaMemsetAsync(dst, value, bytes, nullptr);
}
cudaError_t cudaGetSymbolAddress(void** where, const void* symbol) {
  static std::mutex mutex;
  static auto* const symbols = new std::map<const void*, void*>;
  const std::lock_guard lock(mutex);
  constexpr std::size_t kBytes = 4096;
  void*& found = (*symbols)[symbol];
  if (found == nullptr) {
    const cudaError_t status = memory().allocate(&found, kBytes);
    if (status != cudaSuccess) return remember(status);
  }
  return give(where, found);
}

// ---- streams and events ------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return call("cudaStreamCreateWithPriority",
              [&] { return give(stream, streams().create(flags, priority)); });
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  streams().destroy(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return give(priority, streams().of(stream).priority);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call("cudaStreamQuery", [&] { return streams().wait(stream); });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  software_gpu_log("wait-for-stream");
  return call("cudaStreamSynchronize", [&] { return streams().wait(stream); });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return remember(streams().enqueue(stream, [=] { function(data); }));
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data,
                                  unsigned /*flags*/) {
  return remember(streams().enqueue(stream, [=] { function(stream, cudaSuccess, data); }));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call("cudaEventCreateWithFlags", [&] {
    auto* const made = new Event;
    made->has_timing = (flags & cudaEventDisableTiming) == 0;
    return give(event, reinterpret_cast<cudaEvent_t>(made));
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned /*flags*/) {
  return call("cudaEventRecord", [&] { return record(event, stream); });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return unsafe("cudaEventQuery", [&] { return wait_for(event); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return unsafe("cudaEventSynchronize", [&] { return wait_for(event); });
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t first, cudaEvent_t last) {
  return call("cudaEventElapsedTime", [&] {
    const auto &start = *reinterpret_cast<Event*>(first), &stop = *reinterpret_cast<Event*>(last);
    if (!start.has_timing || !stop.has_timing || !start.is_recorded || !stop.is_recorded) {
      return cudaErrorInvalidResourceHandle;
    }
    return give(ms, std::chrono::duration<float, std::milli>(*stop.time - *start.time).count());
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned /*flags*/) {
  const std::lock_guard lock(streams().mutex);
  const auto* const event = reinterpret_cast<const Event*>(handle);
  std::shared_ptr<Capture>& capture = streams().of(stream).capture;
  if (capture == nullptr) {
    if (event->capture == nullptr) return cudaSuccess;
    if (event->capture->is_ended) return remember(cudaErrorCapturedEvent);
    if (Streams::is_legacy(stream)) return remember(cudaErrorStreamCaptureImplicit);
    capture = event->capture;  // the stream takes part in the capture
    return cudaSuccess;
  }
  if (event->is_recorded && event->capture != capture) {
    capture->is_invalid = true;
    return remember(cudaErrorStreamCaptureIsolation);
  }
  return cudaSuccess;
}

// ---- graphs ------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", [&] {
    software_gpu_log("begin-capture");
    return streams().begin(stream, mode);
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call("cudaStreamEndCapture", [&] {
    std::shared_ptr<Graph> found;
    const cudaError_t status = streams().end(stream, found);
    *graph = nullptr;
    if (status == cudaSuccess) {
      *graph = reinterpret_cast<cudaGraph_t>(new std::shared_ptr<Graph>(found));
      software_gpu_log(("end-capture " + std::to_string(found->nodes.size())).c_str());
    }
    return status;
  });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(streams().mutex);
  const auto& capture = streams().of(stream).capture;
  return give(status, capture == nullptr    ? cudaStreamCaptureStatusNone
                      : capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                            : cudaStreamCaptureStatusActive);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, std::size_t* count) {
  static_cast<void>(cudaStreamIsCapturing(stream, status));
  const std::lock_guard lock(streams().mutex);
  const auto& capture = streams().of(stream).capture;
  if (id != nullptr) *id = capture != nullptr ? capture->id : 0;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(Streams::thread_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* /*nodes*/, std::size_t* count) {
  return give(count, (*reinterpret_cast<std::shared_ptr<Graph>*>(graph))->nodes.size());
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* result, cudaGraph_t graph,
                                          unsigned long long /*flags*/) {
  return call("cudaGraphInstantiateWithFlags", [&] {
    auto* const copy =
        new std::shared_ptr<Graph>(*reinterpret_cast<std::shared_ptr<Graph>*>(graph));
    return give(result, reinterpret_cast<cudaGraphExec_t>(copy));
  });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return call("cudaGraphLaunch", [&] {
    const std::shared_ptr<Graph> nodes = *reinterpret_cast<std::shared_ptr<Graph>*>(graph);
    return streams().enqueue(stream, [nodes] {
      for (const Work& work : nodes->nodes) work();
    });
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<std::shared_ptr<Graph>*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<std::shared_ptr<Graph>*>(graph);
  return cudaSuccess;
}

// ---- kernels -----------------------------------------------------------------------------------

void** __cudaRegisterFatBinary(void* /*binary*/) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void** /*binary*/) {}
void __cudaUnregisterFatBinary(void** /*binary*/) {}
char __cudaInitModule(void** /*binary*/) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
void __cudaRegisterFunction(void** /*binary*/, const char* host, char* /*device*/, const char* name,
                            int, uint3*, uint3*, dim3*, dim3*, int*) {
  kernel_names()[host] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes,
                                     CUstream_st* stream) {
  configurations.emplace_back(grid, block, shared_bytes, stream);
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes,
                                       void* stream) {
  std::tie(*grid, *block, *shared_bytes, *static_cast<cudaStream_t*>(stream)) =
      configurations.back();
  configurations.pop_back();
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return give(kernel, reinterpret_cast<cudaKernel_t>(const_cast<void*>(function)));
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
  return call("cudaLaunchKernel",
              [&] { return launch(function, grid, block, arguments, shared_bytes, stream); });
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  return cudaLaunchKernel(function, config->gridDim, config->blockDim, arguments,
                          config->dynamicSmemBytes, config->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* result, const void* /*function*/) {
  cudaFuncAttributes found = {};
  found.maxThreadsPerBlock = 1024;
  found.numRegs = 32;
  found.binaryVersion = found.ptxVersion = 90;
  return give(result, found);
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                          std::size_t) {
  return give(blocks, 2);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   std::size_t, unsigned) {
  return give(blocks, 2);
}

// Functions of the driver, which torch looks up by name. It gets those that the process has.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = driver_function(name);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"

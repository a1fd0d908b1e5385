// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace torchalgo {

/// The functions of CUDA's runtime and driver that torchalgo calls. load_cuda_runtime() or a test
/// fills them. Nothing is linked, so the same libtorchalgo.so works with a torch without CUDA.
/// Names, arguments and status codes (0: success) are those of cuda_runtime_api.h and cuda.h.
struct CudaRuntime {
  using Stream = void*;     // cudaStream_t
  using Graph = void*;      // cudaGraph_t
  using GraphExec = void*;  // cudaGraphExec_t

  std::function<int(int* count)> get_device_count;
  std::function<int(int* value, int attribute, int device)> get_attribute;
  std::function<int(int* version)> get_driver_version;   // newest CUDA of the driver: 13000
  std::function<int(int* version)> get_runtime_version;  // 13000
  std::function<const char*(int status)> get_error_string;
  std::function<int()> get_last_error;  // returns and clears it

  std::function<int(Stream)> synchronize;
  std::function<int(Stream, int* capture_status)> get_capture_status;  // cudaStreamIsCapturing
  std::function<int(Stream, int mode)> begin_capture;
  std::function<int(Stream, Graph*)> end_capture;
  std::function<int(GraphExec*, Graph, unsigned long long flags)> instantiate;
  std::function<int(GraphExec, Stream)> launch;
  std::function<int(GraphExec)> destroy_exec;
  std::function<int(Graph)> destroy_graph;

  // Functions of the driver. It numbers devices as the runtime does.
  std::function<int(char* name, int size, int device)> get_name;
  std::function<int(std::size_t* bytes, int device)> get_total_memory;
};

/// The process's CUDA runtime, or the reason why there is none.
struct LoadedCudaRuntime {
  std::shared_ptr<const CudaRuntime> runtime;  // null: `absence` says why
  std::string absence;
};

/// Looks up the functions in the libcudart that torch has mapped. It maps no library itself, so
/// that the process never holds two. The runtime is cached once it is found. If it is absent, the
/// next call looks again, since torch may load CUDA later.
[[nodiscard]] LoadedCudaRuntime load_cuda_runtime();

/// Returns load_cuda_runtime().runtime. @throws Error  with the text of `absence` if it is null.
[[nodiscard]] const CudaRuntime& cuda_runtime();

/// Checks the status of a CUDA call. @throws Error  "<function>: <CUDA's text> (<status>)" unless
/// `status` is 0.
void check_cuda(const CudaRuntime& runtime, int status, const char* function);

/// Returns true if `stream` captures a CUDA graph, or if another stream captures one and forbids
/// the question. @throws Error  if CUDA fails.
[[nodiscard]] bool is_capturing(const CudaRuntime& runtime, CudaRuntime::Stream stream);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

// Streams, events and graphs of the GPU in software, with the most important of CUDA's rules for
// captures. Streams that were not joined again are not found.
namespace software_gpu {

using Work = std::function<void()>;

struct Graph {
  std::vector<Work> nodes;
};

/// A graph that is being captured. Streams that wait for its events take part in it.
struct Capture {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  unsigned long long id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread = std::this_thread::get_id();
  bool is_invalid = false;
  bool is_ended = false;
};

struct Stream {
  int device = 0;
  int priority = 0;
  unsigned flags = cudaStreamDefault;
  std::shared_ptr<Capture> capture;  // null: none
};

struct Event {
  bool has_timing = true;
  bool is_recorded = false;
  // Graphs that write it may outlive the event.
  std::shared_ptr<std::chrono::steady_clock::time_point> time =
      std::make_shared<std::chrono::steady_clock::time_point>();
  std::shared_ptr<Capture> capture;  // in which it was last recorded; null if in none
};

/// All streams of the process, and their captures.
class Streams {
 public:
  /// Returns the stream of a handle. Null and CUDA's special handles stand for the legacy one.
  Stream& of(cudaStream_t handle) {
    return is_legacy(handle) ? legacy_ : *reinterpret_cast<Stream*>(handle);
  }
  static bool is_legacy(cudaStream_t handle) {
    return reinterpret_cast<std::uintptr_t>(handle) <= 2;  // cudaStreamLegacy, cudaStreamPerThread
  }
  cudaStream_t create(unsigned flags, int priority) {
    const std::lock_guard lock(mutex);
    auto* const stream = new Stream{current_device, priority, flags, nullptr};
    all_.insert(stream);
    return reinterpret_cast<cudaStream_t>(stream);
  }
  void destroy(cudaStream_t handle) {
    const std::lock_guard lock(mutex);
    auto* const stream = reinterpret_cast<Stream*>(handle);
    if (all_.erase(stream) > 0) delete stream;
  }

  /// Returns the status of a kernel's launch: the stream must be one of the current GPU.
  cudaError_t enqueue_kernel(cudaStream_t handle, const Work& work) {
    const bool is_here = is_legacy(handle) || of(handle).device == current_device;
    return is_here ? enqueue(handle, work) : cudaErrorInvalidResourceHandle;
  }

  cudaError_t enqueue(cudaStream_t handle, const Work& work) {
    {
      const std::lock_guard lock(mutex);
      Stream& stream = of(handle);
      if (stream.capture != nullptr) {
        if (stream.capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
        stream.capture->graph->nodes.push_back(work);
        return cudaSuccess;
      }
      if (&stream == &legacy_ && invalidate([](const Stream& other) {
            return (other.flags & cudaStreamNonBlocking) == 0;
          })) {
        return cudaErrorStreamCaptureImplicit;  // the legacy stream waits for blocking ones
      }
    }
    work();
    return cudaSuccess;
  }

  cudaError_t begin(cudaStream_t handle, cudaStreamCaptureMode mode) {
    const std::lock_guard lock(mutex);
    Stream& stream = of(handle);
    if (&stream == &legacy_) return cudaErrorStreamCaptureUnsupported;
    if (stream.capture != nullptr) return cudaErrorIllegalState;
    stream.capture = std::make_shared<Capture>();
    stream.capture->mode = mode;
    stream.capture->id = ++last_id_;
    return cudaSuccess;
  }

  cudaError_t end(cudaStream_t handle, std::shared_ptr<Graph>& graph) {
    const std::lock_guard lock(mutex);
    const std::shared_ptr<Capture> capture = of(handle).capture;
    if (capture == nullptr) return cudaErrorIllegalState;
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        capture->thread != std::this_thread::get_id()) {
      return cudaErrorStreamCaptureWrongThread;
    }
    capture->is_ended = true;
    for (Stream* each : all_) {
      if (each->capture == capture) each->capture = nullptr;
    }
    if (capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
    graph = capture->graph;
    return cudaSuccess;
  }

  /// Returns the status of a call that waits or allocates. Invalidates the captures that forbid it.
  cudaError_t unsafe_call() {
    const std::lock_guard lock(mutex);
    if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    const bool breaks = invalidate([](const Stream& stream) {
      const Capture& capture = *stream.capture;
      if (capture.thread == std::this_thread::get_id()) {
        return capture.mode != cudaStreamCaptureModeRelaxed;
      }
      return thread_mode == cudaStreamCaptureModeGlobal &&
             capture.mode == cudaStreamCaptureModeGlobal;
    });
    return breaks ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
  }

  /// Returns the status of a wait for a stream. Invalidates the capture of the stream.
  cudaError_t wait(cudaStream_t handle) {
    const std::lock_guard lock(mutex);
    const std::shared_ptr<Capture> capture = of(handle).capture;
    if (capture == nullptr) return cudaSuccess;
    capture->is_invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }

  static inline thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
  static inline thread_local int current_device = 0;
  std::mutex mutex;

 private:
  // Ends the captures of the streams that `concerns` names. Returns whether there are any.
  bool invalidate(const std::function<bool(const Stream&)>& concerns) {
    bool is_any = false;
    for (Stream* each : all_) {
      if (each->capture == nullptr || !concerns(*each)) continue;
      each->capture->is_invalid = is_any = true;
    }
    return is_any;
  }

  Stream legacy_;
  std::set<Stream*> all_;
  unsigned long long last_id_ = 0;
};

}  // namespace software_gpu

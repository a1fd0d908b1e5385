// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "profiler/timer.h"
#include "provider/cuda_runtime.h"
#include "provider/device.h"

namespace torchalgo {

/// The operations on a GPU's queue of work that timing needs. They are functions, so that a test
/// needs no GPU.
struct CudaQueue {
  std::function<void()> flush_l2;  // enqueues a write of exactly as many bytes as L2 has
  std::function<void()> record_start, record_stop;  // events
  std::function<double()> elapsed_ns;               // from start to stop; waits for the stop
  /// Captures the work that `enqueue` enqueues as one CUDA graph. Returns a function that launches
  /// it.
  std::function<std::function<void()>(const std::function<void()>& enqueue)> capture;
  std::function<std::shared_ptr<void>()> enter;  // see Timer::enter
  std::int64_t l2_bytes = 0;
};

/// Returns the queue of a GPU of this process. It has a stream of its own, because the default
/// stream cannot be captured. `enter` makes this stream torch's current one.
/// @throws Error  if `device` is only described, or torch has no CUDA.
[[nodiscard]] CudaQueue cuda_queue(const Device& device);

/// Captures the work that `enqueue` enqueues on `stream`, by functions of CUDA's runtime. If
/// `enqueue` throws or an operation cannot be captured, the capture ends, and the stream is as
/// before.
[[nodiscard]] std::function<void()> capture_graph(const CudaRuntime& runtime,
                                                  CudaRuntime::Stream stream,
                                                  const std::function<void()>& enqueue);

struct CudaTimerOptions {
  // A run that is shorter than this is timed as a graph of `graph_launches` runs on rotating
  // buffers, because a launch costs the host some microseconds.
  double graph_below_ns = 50e3;
  int graph_launches = 20;
  // Warm-up ends when this many samples in a row lie within this ratio of each other, or after
  // `most_warmups` runs.
  int stable_samples = 3;
  double stable_ratio = 1.05;
  int most_warmups = 25;
};

/// Returns a timer that records events around one run, or around a graph of many short ones. It
/// flushes L2 before each sample, outside the timed window, so that a run reads everything from
/// DRAM.
[[nodiscard]] std::shared_ptr<Timer> cuda_timer(CudaQueue queue,
                                                const CudaTimerOptions& options = {});

}  // namespace torchalgo

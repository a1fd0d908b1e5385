// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "profiler/timer.h"
#include "provider/cuda_runtime.h"
#include "provider/device.h"

namespace torchalgo {

/// What timing needs of a GPU's queue of work, as functions, so that a test runs without a GPU.
struct CudaQueue {
  std::function<void()> flush_l2;  // enqueues a write of exactly as many bytes as L2 has
  std::function<void()> record_start, record_stop;  // events
  std::function<double()> elapsed_ns;               // waits for the stop; start to stop
  /// Records what `enqueue` enqueues as one graph; the result launches it.
  std::function<std::function<void()>(const std::function<void()>& enqueue)> capture;
  std::function<std::shared_ptr<void>()> enter;  // see Timer::enter
  std::int64_t l2_bytes = 0;
};

/// That of a GPU of this process, on a stream of its own, which `enter` makes torch's current one:
/// the default stream cannot be captured.
/// @throws Error  if `device` is only described, or torch has no CUDA.
[[nodiscard]] CudaQueue cuda_queue(const Device& device);

/// cuda_queue's capture: of `stream`, by functions of CUDA's runtime. What `enqueue` throws, and an
/// operation that cannot be captured, ends the capture and leaves the stream as it was.
[[nodiscard]] std::function<void()> capture_graph(const CudaRuntime& runtime,
                                                  CudaRuntime::Stream stream,
                                                  const std::function<void()>& enqueue);

struct CudaTimerOptions {
  // Launching costs the host some microseconds: what lasts less than this is timed as a graph of
  // `graph_launches` runs on rotating buffers.
  double graph_below_ns = 50e3;
  int graph_launches = 20;
  // Warm: this many samples in a row within this ratio of each other; or not to be had.
  int stable_samples = 3;
  double stable_ratio = 1.05;
  int most_warmups = 25;
};

/// Events around one run, or around a graph of many for short ones. L2 is flushed before each
/// sample, outside the timed window, so every run finds all that it reads in DRAM.
[[nodiscard]] std::shared_ptr<Timer> cuda_timer(CudaQueue queue,
                                                const CudaTimerOptions& options = {});

}  // namespace torchalgo

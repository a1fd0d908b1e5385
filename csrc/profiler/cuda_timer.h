// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "ir/device.h"
#include "profiler/timer.h"
#include "provider/cuda_library.h"
#include "provider/cuda_runtime.h"

namespace torchalgo {

/// The operations on a GPU's queue of work that timing needs. They are functions, so that a test
/// needs no GPU.
struct CudaQueue {
  /// Enqueues a write and then a read of twice as many bytes as L2 has. The read leaves nothing in
  /// L2 that would have to be written back during the timed run.
  std::function<void()> flush_l2;
  std::function<void()> record_start, record_stop;  // events
  std::function<double()> elapsed_ns;               // from start to stop; waits for the stop
  /// Captures the work that `enqueue` enqueues as one CUDA graph. Returns a function that launches
  /// it. Null if nothing can be captured.
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
/// before. What torch allocates meanwhile belongs to a pool of the graph: a launch writes to it
/// although its tensors are gone, so no other tensor may have this memory.
[[nodiscard]] std::function<void()> capture_graph(const CudaRuntime& runtime,
                                                  const CudaLibrary& library, int device,
                                                  CudaRuntime::Stream stream,
                                                  const std::function<void()>& enqueue);

struct CudaTimerOptions {
  // A graph has as many runs, on rotating buffers, as take this time, but at most `most_runs`: the
  // time between two launches then counts little.
  double graph_ns = 1e6;
  int most_runs = 20;
  // Warm-up ends when this many samples in a row lie within this ratio of each other, or after
  // `most_warmups` runs.
  int stable_samples = 3;
  double stable_ratio = 1.05;
  int most_warmups = 25;
};

/// Returns a timer that records events around a CUDA graph of one or more runs, or around one run
/// where nothing can be captured. It flushes L2 before each sample, outside the timed window, so
/// that a run reads everything from DRAM.
[[nodiscard]] std::shared_ptr<Timer> cuda_timer(CudaQueue queue,
                                                const CudaTimerOptions& options = {});

}  // namespace torchalgo

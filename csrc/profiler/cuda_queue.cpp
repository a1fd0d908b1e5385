// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/error.h"
#include "profiler/cuda_timer.h"
#include "provider/cuda_device.h"

namespace torchalgo {
namespace {

constexpr int kCaptureModeRelaxed = 2;  // cudaStreamCaptureModeRelaxed: an allocation may happen

// Makes a stream torch's current one until this object is destroyed. Work that was enqueued earlier
// on other streams is finished first. Work on this stream is finished at the end.
class OwnStream {
 public:
  explicit OwnStream(c10::Stream stream) : impl_(at::kCUDA), stream_(stream) {
    impl_.synchronizeDevice(stream.device_index());
    guard_.emplace(stream);
  }
  ~OwnStream() {
    try {
      impl_.synchronizeStream(stream_);
    } catch (...) {  // a failed kernel was reported when it was waited for
    }
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  c10::impl::VirtualGuardImpl impl_;
  c10::Stream stream_;
  std::optional<c10::StreamGuard> guard_;
};

struct Events {
  c10::Event start{at::kCUDA, c10::EventFlag::BACKEND_DEFAULT};  // with timing
  c10::Event stop{at::kCUDA, c10::EventFlag::BACKEND_DEFAULT};
};

void clear_error(const CudaRuntime& runtime) { static_cast<void>(runtime.get_last_error()); }

// A private pool of torch's allocator. It is open from the constructor to close(), and is freed by
// the destructor.
class PrivatePool {
 public:
  PrivatePool(const CudaLibrary& library, int device, CudaRuntime::Stream stream)
      : library_(library), device_(device), number_(library.open_pool(device, stream)) {
    TORCHALGO_CHECK(number_ != 0, "TA5004 torchalgo: torch's allocator opens no pool on GPU {}",
                    device);
  }
  PrivatePool(const PrivatePool&) = delete;
  PrivatePool& operator=(const PrivatePool&) = delete;
  ~PrivatePool() {
    close();
    library_.free_pool(device_, number_);
  }
  void close() {
    if (std::exchange(is_open_, false)) library_.close_pool(device_, number_);
  }

 private:
  const CudaLibrary& library_;
  int device_;
  std::uint64_t number_;
  bool is_open_ = true;
};

// A CUDA graph with the memory that its launches write.
struct CapturedGraph {
  std::shared_ptr<PrivatePool> pool;  // outlives the graph
  std::shared_ptr<void> exec;
};

// One stream for each GPU: torch has few, and gives each new owner the next one.
c10::Stream stream_of(at::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const auto known = streams.find(device.index());
  if (known != streams.end()) return known->second;
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  return streams.emplace(device.index(), guard.getStreamFromGlobalPool(device, false))
      .first->second;
}

}  // namespace

std::function<void()> capture_graph(const CudaRuntime& runtime, const CudaLibrary& library,
                                    int device, CudaRuntime::Stream stream,
                                    const std::function<void()>& enqueue) {
  CapturedGraph captured;
  captured.pool = std::make_shared<PrivatePool>(library, device, stream);
  check_cuda(runtime, runtime.begin_capture(stream, kCaptureModeRelaxed), "cudaStreamBeginCapture");
  CudaRuntime::Graph graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    static_cast<void>(runtime.end_capture(stream, &graph));
    if (graph != nullptr) static_cast<void>(runtime.destroy_graph(graph));
    clear_error(runtime);  // or the next kernel launch would report it
    throw;
  }
  const int ended = runtime.end_capture(stream, &graph);
  captured.pool->close();
  if (ended != 0) clear_error(runtime);
  check_cuda(runtime, ended, "cudaStreamEndCapture");
  CudaRuntime::GraphExec exec = nullptr;
  const int status = runtime.instantiate(&exec, graph, 0);
  static_cast<void>(runtime.destroy_graph(graph));
  if (status != 0) clear_error(runtime);
  check_cuda(runtime, status, "cudaGraphInstantiateWithFlags");
  captured.exec = std::shared_ptr<void>(
      exec, [&runtime](void* it) { static_cast<void>(runtime.destroy_exec(it)); });
  return [&runtime, stream, captured] {
    check_cuda(runtime, runtime.launch(captured.exec.get(), stream), "cudaGraphLaunch");
  };
}

CudaQueue cuda_queue(const Device& device) {
  const at::Device where = torch_device(device);
  const CudaRuntime& runtime = cuda_runtime();
  const c10::Stream stream = stream_of(where);
  const auto events = std::make_shared<Events>();
  const auto buffer = std::make_shared<at::Tensor>(), sum = std::make_shared<at::Tensor>();
  CudaQueue queue;
  queue.l2_bytes = device.l2_bytes;
  queue.enter = [=]() -> std::shared_ptr<void> {
    auto own = std::make_shared<OwnStream>(stream);
    // Allocated here, so that they belong to this stream.
    const auto options = at::TensorOptions().dtype(at::kFloat).device(where);
    *buffer = at::empty({2 * device.l2_bytes / std::int64_t{sizeof(float)}}, options);
    *sum = at::empty({}, options);
    return own;
  };
  queue.flush_l2 = [buffer, sum] {
    buffer->zero_();
    at::sum_out(*sum, *buffer, at::OptionalIntArrayRef(at::IntArrayRef{0}));
  };
  queue.record_start = [events, stream] { events->start.record(stream); };
  queue.record_stop = [events, stream] { events->stop.record(stream); };
  queue.elapsed_ns = [events] {
    events->stop.synchronize();
    return events->start.elapsedTime(events->stop) * 1e6;
  };
  if (const CudaLibrary& library = cuda_library(); library.open_pool) {
    queue.capture = [&runtime, &library, where, stream](const std::function<void()>& enqueue) {
      return capture_graph(runtime, library, where.index(), stream.native_handle(), enqueue);
    };
  }
  return queue;
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <optional>

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

}  // namespace

std::function<void()> capture_graph(const CudaRuntime& runtime, CudaRuntime::Stream stream,
                                    const std::function<void()>& enqueue) {
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
  if (ended != 0) clear_error(runtime);
  check_cuda(runtime, ended, "cudaStreamEndCapture");
  CudaRuntime::GraphExec exec = nullptr;
  const int status = runtime.instantiate(&exec, graph, 0);
  static_cast<void>(runtime.destroy_graph(graph));
  if (status != 0) clear_error(runtime);
  check_cuda(runtime, status, "cudaGraphInstantiateWithFlags");
  const std::shared_ptr<void> owner(
      exec, [&runtime](void* it) { static_cast<void>(runtime.destroy_exec(it)); });
  return [&runtime, stream, owner] {
    check_cuda(runtime, runtime.launch(owner.get(), stream), "cudaGraphLaunch");
  };
}

CudaQueue cuda_queue(const Device& device) {
  const at::Device where = torch_device(device);
  const CudaRuntime& runtime = cuda_runtime();
  const c10::Stream stream =
      c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(where, false);
  const auto events = std::make_shared<Events>();
  const auto buffer = std::make_shared<at::Tensor>();
  CudaQueue queue;
  queue.l2_bytes = device.l2_bytes;
  queue.enter = [=]() -> std::shared_ptr<void> {
    auto own = std::make_shared<OwnStream>(stream);
    // Allocated here, so that it belongs to this stream.
    *buffer = at::empty({device.l2_bytes}, at::TensorOptions().dtype(at::kByte).device(where));
    return own;
  };
  queue.flush_l2 = [buffer] { buffer->zero_(); };
  queue.record_start = [events, stream] { events->start.record(stream); };
  queue.record_stop = [events, stream] { events->stop.record(stream); };
  queue.elapsed_ns = [events] {
    events->stop.synchronize();
    return events->start.elapsedTime(events->stop) * 1e6;
  };
  queue.capture = [&runtime, stream](const std::function<void()>& enqueue) {
    return capture_graph(runtime, stream.native_handle(), enqueue);
  };
  return queue;
}

}  // namespace torchalgo

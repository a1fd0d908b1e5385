// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/handles.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cudnn_algo/descriptor.h"

namespace torchalgo::cudnn {
namespace {

struct OwnHandle {
  std::shared_ptr<const Api> api;
  int device = 0;
  Handle raw = nullptr;
  std::optional<Stream> stream;  // that it was set to
};

// The handles whose threads have ended. A new thread takes one of them, with the plans that were
// made for it. Handles are never destroyed: at the end of a process, CUDA may end before them.
class FreeHandles {
 public:
  std::optional<OwnHandle> take(const Api& api, int device) {
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const OwnHandle& each) {
      return each.api.get() == &api && each.device == device;
    };
    const auto found = std::ranges::find_if(handles_, fits);
    if (found == handles_.end()) return std::nullopt;
    OwnHandle handle = std::move(*found);
    handles_.erase(found);
    return handle;
  }
  void give(OwnHandle handle) {
    const std::lock_guard lock(mutex_);
    handles_.push_back(std::move(handle));
  }

 private:
  std::mutex mutex_;
  std::vector<OwnHandle> handles_;
};

FreeHandles& free_handles() {
  static auto* const handles = new FreeHandles;  // threads may end after static objects
  return *handles;
}

struct ThreadHandles {
  std::vector<OwnHandle> all;  // few: one for each GPU
  ThreadHandles() = default;
  ThreadHandles(const ThreadHandles&) = delete;
  ThreadHandles& operator=(const ThreadHandles&) = delete;
  ~ThreadHandles() {
    for (OwnHandle& each : all) free_handles().give(std::move(each));
  }
};

OwnHandle make_handle(const std::shared_ptr<const Api>& api, int device) {
  OwnHandle handle{api, device, nullptr, std::nullopt};
  check(*api, api->create_handle(&handle.raw), "cudnnCreate");
  return handle;
}

}  // namespace

Handle handle_of_thread(const std::shared_ptr<const Api>& api, const Runtime& runtime) {
  thread_local ThreadHandles own;
  const int device = runtime.device();
  auto handle = std::ranges::find_if(
      own.all, [&](const OwnHandle& each) { return each.api == api && each.device == device; });
  if (handle == own.all.end()) {
    auto ended = free_handles().take(*api, device);
    own.all.push_back(ended ? *std::move(ended) : make_handle(api, device));
    handle = own.all.end() - 1;
  }
  const Stream stream = runtime.stream();
  if (handle->stream != stream) {
    handle->stream.reset();  // unknown if setting it fails
    check(*api, api->set_stream(handle->raw, stream), "cudnnSetStream");
    handle->stream = stream;
  }
  return handle->raw;
}

}  // namespace torchalgo::cudnn

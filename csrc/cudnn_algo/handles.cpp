// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/handles.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "cudnn_algo/descriptor.h"

namespace torchalgo::cudnn {
namespace {

using Handles = std::list<OwnHandle>;  // which stay where they are

Handles::iterator find_handle(Handles& handles, const Api& api, int device) {
  return std::ranges::find_if(handles, [&](const OwnHandle& each) {
    return each.api.get() == &api && each.device == device;
  });
}

// The handles whose threads have ended. A new thread takes one of them, with the plans that were
// made for it. Handles are never destroyed: at the end of a process, CUDA may end before them.
class FreeHandles {
 public:
  // Moves a handle that fits to `taken`, if there is one.
  void take(const Api& api, int device, Handles& taken) {
    const std::lock_guard lock(mutex_);
    const auto found = find_handle(handles_, api, device);
    if (found != handles_.end()) taken.splice(taken.end(), handles_, found);
  }
  void give(Handles& handles) {
    const std::lock_guard lock(mutex_);
    handles_.splice(handles_.end(), handles);
  }

 private:
  std::mutex mutex_;
  Handles handles_;
};

FreeHandles& free_handles() {
  static auto* const handles = new FreeHandles;  // threads may end after static objects
  return *handles;
}

struct ThreadHandles {
  Handles all;  // few: one for each GPU
  ThreadHandles() = default;
  ThreadHandles(const ThreadHandles&) = delete;
  ThreadHandles& operator=(const ThreadHandles&) = delete;
  ~ThreadHandles() { free_handles().give(all); }
};

OwnHandle make_handle(const std::shared_ptr<const Api>& api, int device) {
  OwnHandle handle = {.api = api, .device = device};
  check(*api, api->create_handle(&handle.raw), "cudnnCreate");
  return handle;
}

}  // namespace

OwnHandle& handle_of_thread(const std::shared_ptr<const Api>& api, const Runtime& runtime) {
  thread_local ThreadHandles own;
  const int device = runtime.device();
  auto handle = find_handle(own.all, *api, device);
  if (handle == own.all.end()) {
    free_handles().take(*api, device, own.all);
    handle = find_handle(own.all, *api, device);
  }
  if (handle == own.all.end()) handle = own.all.insert(handle, make_handle(api, device));
  const Stream stream = runtime.stream();
  if (handle->stream != stream) {
    handle->stream.reset();  // unknown if setting it fails
    check(*api, api->set_stream(handle->raw, stream), "cudnnSetStream");
    handle->stream = stream;
  }
  return *handle;
}

}  // namespace torchalgo::cudnn

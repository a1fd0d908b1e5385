// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/error_code.h"
#include "cudnn_algo/descriptor.h"
#include "cudnn_algo/executable_cache.h"
#include "cudnn_algo/handles.h"
#include "cudnn_algo/runtime.h"
#include "provider/kernel.h"

// The parts of running engines and legacy functions that both share.

namespace torchalgo::cudnn {

/// One run of an engine or a legacy function.
struct EngineCall {
  const Problem& problem;
  const Primitive& primitive;
  const KernelArgs& args;
};

/// Returns the text of a call: "cudnn9.conv.e22 nhwc->nhwc, problem fwd_f16_..., cuDNN 9.19.0".
[[nodiscard]] std::string describe(const Api& api, const EngineCall& call);

/// Keeps the state of a prepared convolution for each handle, so that only its first run searches
/// for a plan. A handle belongs to one thread at a time, so only the search here is locked.
template <typename State>
class PerHandle {
 public:
  [[nodiscard]] State& of(Handle handle) {
    const std::lock_guard lock(mutex_);
    return states_[handle];
  }

 private:
  std::mutex mutex_;
  std::map<Handle, State> states_;  // which stay where they are
};

/// Returns the executable of `call`: `known` if it still exists and has run before, else that in
/// the handle's cache, else the result of `build`, which is added to the cache. `known` then refers
/// to it. `build` is not called while the stream captures a CUDA graph, because it allocates and
/// loads kernels, which breaks a capture.
/// @throws Error  if the stream is capturing and the executable has not run before.
[[nodiscard]] std::shared_ptr<Executable> find_or_build(
    std::weak_ptr<Executable>& known, const Runtime& runtime, OwnHandle& handle,
    const EngineCall& call, const std::function<std::shared_ptr<Executable>()>& build);

/// To be called after a run. If the stream is capturing, the executable is kept until the process
/// ends: nobody tells when the CUDA graph is destroyed, and cuDNN may unload kernels with the plan.
void note_run(const std::shared_ptr<Executable>& executable, const Runtime& runtime);

/// The workspace of a run: that of the caller. If the plan needs more, because it is of another
/// cuDNN or GPU than the primitive, it is a new one, which execution_stats() counts.
class Workspace {
 public:
  /// @throws Error  if the caller has no workspace and the plan needs one.
  Workspace(const Api& api, const Executable& executable, const EngineCall& call);
  [[nodiscard]] void* data() const { return data_; }

 private:
  at::Tensor own_;
  void* data_ = nullptr;
};

/// Aligned pointers to the data of tensors. Views that are not aligned to kAlignment are copied to
/// aligned memory. cuDNN's plans are built for aligned tensors, and most tensor-core engines accept
/// no others.
class AlignedTensors {
 public:
  [[nodiscard]] void* input(const at::Tensor& tensor);
  /// Returns memory for the result, which the caller fills before finish().
  [[nodiscard]] void* output(const at::Tensor& tensor);
  /// Copies the outputs to their tensors.
  void finish();

 private:
  std::vector<at::Tensor>
      inputs_;  // kept until the copies are used; their memory is stream ordered
  std::vector<std::pair<at::Tensor, at::Tensor>> outputs_;  // (where it belongs, aligned)
};

/// Runs `body` and adds describe(api, call) to an Error of cuDNN.
template <typename Body>
void with_description(const Api& api, const EngineCall& call, const Body& body) {
  try {
    body();
  } catch (const StatusError& error) {
    throw Error(with_inner_code(fmt::format("TA5102 {} ({})", error.what(), describe(api, call))));
  }
}

}  // namespace torchalgo::cudnn

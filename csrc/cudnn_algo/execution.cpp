// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/execution.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "cudnn_algo/graph.h"
#include "cudnn_algo/run.h"

namespace torchalgo::cudnn {
namespace {

std::atomic<std::int64_t> plans_built = 0, plans_evicted = 0, tensors_repacked = 0,
                          workspaces_grown = 0;

bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kAlignment == 0;
}

// Returns an uninitialized tensor with the same sizes and strides in a new, aligned block of
// memory.
at::Tensor aligned_like(const at::Tensor& tensor) {
  tensors_repacked.fetch_add(1, std::memory_order_relaxed);
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
}

void refuse_capture(const Api& api, const Runtime& runtime, const EngineCall& call, bool is_built) {
  TORCHALGO_CHECK(!runtime.is_capturing(),
                  "TA5105 cuDNN: a CUDA graph is being captured, and this thread has {} the plan "
                  "before: run the model once with the same shapes before capturing ({})",
                  is_built ? "built but never run" : "never built", describe(api, call));
}

}  // namespace

std::string describe(const Api& api, const EngineCall& call) {
  return fmt::format("{}, problem {}, cuDNN {}", to_string(call.primitive), to_string(call.problem),
                     version_text(api));
}

std::shared_ptr<Executable> find_or_build(
    std::weak_ptr<Executable>& known, const Runtime& runtime, OwnHandle& handle,
    const EngineCall& call, const std::function<std::shared_ptr<Executable>()>& build) {
  std::shared_ptr<Executable> executable = known.lock();
  if (executable != nullptr && executable->has_run) return executable;
  const ExecutableKey key = {&std::get<ConvProblem>(call.problem), &call.primitive};
  ExecutableCache& cache = handle.executables;
  executable = cache.find(key);
  if (executable == nullptr || !executable->has_run) {
    refuse_capture(*handle.api, runtime, call, executable != nullptr);
  }
  if (executable == nullptr) {
    executable = build();
    plans_built.fetch_add(1, std::memory_order_relaxed);
    // A run through `known` does not ask the cache, so it is noted in the executable.
    cache.refresh([](const auto& each) { return std::exchange(each->is_recent, false); });
    const std::size_t evicted = cache.add(key, executable);
    plans_evicted.fetch_add(static_cast<std::int64_t>(evicted), std::memory_order_relaxed);
  }
  known = executable;
  return executable;
}

void note_run(const std::shared_ptr<Executable>& executable, const Runtime& runtime) {
  executable->has_run = executable->is_recent = true;
  if (executable->is_pinned || !runtime.is_capturing()) return;
  static std::mutex mutex;
  static auto* const pinned = new std::vector<std::shared_ptr<Executable>>;  // never destroyed
  const std::lock_guard lock(mutex);
  pinned->push_back(executable);
  executable->is_pinned = true;
}

Workspace::Workspace(const Api& api, const Executable& executable, const EngineCall& call)
    : data_(call.args.workspace) {
  const std::int64_t bytes = executable.workspace_bytes;
  if (bytes > call.primitive.workspace_bytes) {
    own_ = at::empty({bytes}, call.args.dst.options().dtype(at::kByte));
    data_ = own_.data_ptr();
    workspaces_grown.fetch_add(1, std::memory_order_relaxed);
  }
  TORCHALGO_CHECK(bytes == 0 || data_ != nullptr,
                  "TA5104 cuDNN: got no workspace, expected {} bytes ({})", bytes,
                  describe(api, call));
}

void* AlignedTensors::input(const at::Tensor& tensor) {
  // cuDNN takes inputs as pointers to non-const memory, but only reads them.
  if (is_aligned(tensor)) return const_cast<void*>(tensor.const_data_ptr());
  inputs_.push_back(aligned_like(tensor).copy_(tensor));
  return inputs_.back().data_ptr();
}

void* AlignedTensors::output(const at::Tensor& tensor) {
  if (is_aligned(tensor)) return tensor.data_ptr();
  outputs_.emplace_back(tensor, aligned_like(tensor));
  return outputs_.back().second.data_ptr();
}

void AlignedTensors::finish() {
  for (const auto& [wanted, aligned] : outputs_) wanted.copy_(aligned);
}

ExecutionStats execution_stats() {
  return {plans_built.load(), plans_evicted.load(), tensors_repacked.load(),
          workspaces_grown.load()};
}

}  // namespace torchalgo::cudnn

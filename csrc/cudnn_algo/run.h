// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "cudnn_algo/api.h"
#include "cudnn_algo/engine.h"
#include "cudnn_algo/execution.h"
#include "cudnn_algo/runtime.h"
#include "ir/algorithm.h"

namespace torchalgo::cudnn {

/// The ids and data of the tensors of a call, in a fixed order, and its workspace.
struct Bindings {
  std::array<std::int64_t, 5> ids{};
  std::array<void*, 5> data{};
  std::int64_t count = 0;
  void* workspace = nullptr;
  bool operator==(const Bindings&) const = default;

  void add(std::int64_t id, void* pointer) {
    ids[static_cast<std::size_t>(count)] = id;
    data[static_cast<std::size_t>(count)] = pointer;
    ++count;
  }
};

/// The state that a prepared convolution keeps between its runs with one handle.
struct EngineState {
  std::weak_ptr<Executable> executable;  // the cache of the handle owns it
  // The latest variant pack. It is used again if the next call has the same memory, as is usual
  // with torch's allocator.
  Bindings bound;
  std::optional<OwnedDescriptor> pack;
};
using EngineStates = PerHandle<EngineState>;

/// Runs `call.primitive`, the engine `spec`, on torch's current stream and returns call.args.dst.
/// Its plan is built at the first call of a thread and cached (executable_cache.h). Tensors below
/// kAlignment are copied to aligned memory around the call, which execution_stats() counts.
/// @param states  of this prepared convolution.
/// @throws Error  with status, primitive and problem: if cuDNN fails, if the tensors are too large,
/// or if the stream is capturing and the plan has never run.
at::Tensor run_engine(const std::shared_ptr<const Api>& api, const Runtime& runtime,
                      const EngineSpec& spec, const EngineCall& call, EngineStates& states);

/// Returns the engine that a primitive names. @throws Error  if it names none.
[[nodiscard]] EngineSpec require_engine_spec(const Primitive& primitive);

/// Returns {weights in the layout of `spec`, bias if the pattern adds one}.
[[nodiscard]] Packed pack_engine(const EngineSpec& spec, const Weights& weights);

/// Returns weights [k, c / groups, (t,) r, s] in kcrs (kNchw) or krsc (kNhwc).
[[nodiscard]] at::Tensor pack_weights(const at::Tensor& weights, Layout layout);

/// Counters of execution on all threads since the start of the process.
struct ExecutionStats {
  std::int64_t plans_built = 0;       // including legacy descriptors
  std::int64_t plans_evicted = 0;     // from a full cache
  std::int64_t tensors_repacked = 0;  // copied because a view was misaligned
  std::int64_t workspaces_grown = 0;  // runs whose plan needed more than the primitive says
};
[[nodiscard]] ExecutionStats execution_stats();

}  // namespace torchalgo::cudnn

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "cudnn_algo/api.h"
#include "cudnn_algo/engine.h"
#include "cudnn_algo/execution.h"
#include "cudnn_algo/runtime.h"
#include "provider/algorithm.h"

namespace torchalgo::cudnn {

/// Runs `call.primitive`, the engine `spec`, on torch's current stream and returns call.args.dst.
/// Its plan is built at the first call of a thread and cached (executable_cache.h), so `api` is
/// shared. Tensors below kAlignment are copied to aligned memory around the call, which
/// execution_stats() counts.
/// @throws Error  with status, primitive and problem: if cuDNN fails, if the plan needs more
/// workspace than the primitive says, or if the stream is capturing and the plan has never run.
at::Tensor run_engine(const std::shared_ptr<const Api>& api, const Runtime& runtime,
                      const EngineSpec& spec, const EngineCall& call);

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
};
[[nodiscard]] ExecutionStats execution_stats();

}  // namespace torchalgo::cudnn

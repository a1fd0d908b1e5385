// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cudnn_algo/descriptor.h"
#include "cudnn_algo/engine.h"
#include "cudnn_algo/graph.h"

namespace torchalgo::cudnn {

/// The machine for which engines and plans are made. It is either torch's handle, whose plans can
/// run, or the finalized properties of a described device (device_properties.h). Exactly one is
/// set. Every function here checks this, because cuDNN crashes if neither is set.
struct Target {
  Handle handle = nullptr;
  const OwnedDescriptor* properties = nullptr;
  std::string isa;  // "sm_90", for texts; may be empty
};

/// The notes of cuDNN about an engine.
struct EngineNotes {
  std::vector<NumericalNote> numerical;
  std::vector<BehaviorNote> behavior;
  bool operator==(const EngineNotes&) const = default;
};
[[nodiscard]] bool has(const EngineNotes& notes, NumericalNote note);
[[nodiscard]] bool has(const EngineNotes& notes, BehaviorNote note);

/// A finalized execution plan. Api::execute can run it if it was made for a handle, on the thread
/// and device of that handle only.
struct ExecutionPlan {
  OwnedDescriptor config;  // kept as long as the plan that was made from it
  OwnedDescriptor descriptor;
  std::int64_t workspace_bytes = 0;
  EngineNotes notes;
};

/// Returns the plan as cuDNN writes it in JSON: what it has understood of the operations.
/// @throws StatusError
[[nodiscard]] std::string json_of(const ExecutionPlan& plan);

/// A plan, or the reason why there is none.
struct ExecutionPlanAnswer {
  std::optional<ExecutionPlan> plan;
  Status status = kSuccess;  // of the call that refused
  std::string refusal;       // reason, with the status
};

/// Builds graph, engine, configuration and plan of exactly `spec`. A runtime-compiled engine
/// compiles here, which takes seconds. `layouts.weights` must be spec.weights, and spec.pattern
/// pattern_of(conv).
[[nodiscard]] ExecutionPlanAnswer make_execution_plan(const Api& api, const Target& target,
                                                      const ConvProblem& conv,
                                                      const Layouts& layouts,
                                                      const EngineSpec& spec,
                                                      std::int64_t alignment = kAlignment);

}  // namespace torchalgo::cudnn

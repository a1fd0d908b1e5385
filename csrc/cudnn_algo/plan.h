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

/// The machine that engines and plans are for: torch's handle (plans can run), or finalized device
/// properties of a described one (device_properties.h). Exactly one is set; cuDNN crashes on
/// neither, so every function here checks it.
struct Target {
  Handle handle = nullptr;
  const OwnedDescriptor* properties = nullptr;
  std::string isa;  // "sm_90", for texts; may be empty
};

/// What cuDNN says of an engine.
struct EngineNotes {
  std::vector<NumericalNote> numerical;
  std::vector<BehaviorNote> behavior;
  bool operator==(const EngineNotes&) const = default;
};
[[nodiscard]] bool has(const EngineNotes& notes, NumericalNote note);
[[nodiscard]] bool has(const EngineNotes& notes, BehaviorNote note);

/// A finalized execution plan, ready for Api::execute if made for a handle, and only on the thread
/// and device of that handle.
struct ExecutionPlan {
  OwnedDescriptor config;  // kept as long as the plan that was made from it
  OwnedDescriptor descriptor;
  std::int64_t workspace_bytes = 0;
  EngineNotes notes;
};

/// A plan, or why there is none.
struct ExecutionPlanAnswer {
  std::optional<ExecutionPlan> plan;
  Status status = kSuccess;  // of the call that refused
  std::string refusal;       // in plain words, with the status
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

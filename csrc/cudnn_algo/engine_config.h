// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cudnn_algo/descriptor.h"
#include "cudnn_algo/graph.h"
#include "cudnn_algo/knobs.h"
#include "cudnn_algo/plan.h"

namespace torchalgo::cudnn {

/// A finalized descriptor, or the status and the reason of the refusal.
struct DescriptorAnswer {
  std::optional<OwnedDescriptor> descriptor;
  Status status = kSuccess;
  std::string refusal;
};

/// Returns the number of engines that cuDNN has for this kind of graph. Their ids begin at 0.
[[nodiscard]] std::int64_t engine_count(const OperationGraph& graph);

/// Makes engine `id` for this graph and machine.
[[nodiscard]] DescriptorAnswer make_engine(const OperationGraph& graph, const Target& target,
                                           std::int64_t id);

/// Makes the engine's configuration with these knobs. It succeeds if and only if cuDNN says that
/// the engine can run with them. The ranges of knob_ranges() do not guarantee this.
[[nodiscard]] DescriptorAnswer make_config(const OwnedDescriptor& engine, const Knobs& knobs,
                                           const Target& target);

[[nodiscard]] std::int64_t workspace_bytes(const OwnedDescriptor& config);

[[nodiscard]] EngineNotes read_notes(const OwnedDescriptor& engine);

/// The values that a knob may have, according to cuDNN.
struct KnobRange {
  KnobType type = 0;
  std::int64_t least = 0, greatest = 0, step = 1;
};
[[nodiscard]] std::vector<KnobRange> knob_ranges(const OwnedDescriptor& engine);

/// A finalized configuration that cuDNN's heuristics propose.
struct HeuristicConfig {
  std::int64_t engine = 0;
  Knobs knobs;  // sorted by name
  std::int64_t workspace_bytes = 0;
  EngineNotes notes;
};

/// Returns at most `limit` proposals, best first. Returns none if cuDNN has none.
[[nodiscard]] std::vector<HeuristicConfig> ask_heuristic(const OperationGraph& graph,
                                                         const Target& target, HeuristicMode mode,
                                                         std::int64_t limit);

}  // namespace torchalgo::cudnn

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

/// A finalized descriptor, or the status and the plain words of the refusal.
struct DescriptorAnswer {
  std::optional<OwnedDescriptor> descriptor;
  Status status = kSuccess;
  std::string refusal;
};

/// Number of engines that cuDNN has for this kind of graph; ids are 0 to this less one.
[[nodiscard]] std::int64_t engine_count(const OperationGraph& graph);

/// Engine `id` for this graph and machine.
[[nodiscard]] DescriptorAnswer make_engine(const OperationGraph& graph, const Target& target,
                                           std::int64_t id);

/// The engine with these knobs: whether this succeeds is cuDNN's test of whether it can run. The
/// ranges of a knob's description are no such test.
[[nodiscard]] DescriptorAnswer make_config(const OwnedDescriptor& engine, const Knobs& knobs,
                                           const Target& target);

[[nodiscard]] std::int64_t workspace_bytes(const OwnedDescriptor& config);

[[nodiscard]] EngineNotes read_notes(const OwnedDescriptor& engine);

/// The values that a knob may have, as far as cuDNN tells.
struct KnobRange {
  KnobType type = 0;
  std::int64_t least = 0, greatest = 0, step = 1;
};
[[nodiscard]] std::vector<KnobRange> knob_ranges(const OwnedDescriptor& engine);

/// A configuration that cuDNN's heuristics propose; finalized.
struct HeuristicConfig {
  std::int64_t engine = 0;
  Knobs knobs;  // sorted by name
  std::int64_t workspace_bytes = 0;
  EngineNotes notes;
};

/// Best first; empty where cuDNN has none. At most `limit`.
[[nodiscard]] std::vector<HeuristicConfig> ask_heuristic(const OperationGraph& graph,
                                                         const Target& target, HeuristicMode mode,
                                                         std::int64_t limit);

}  // namespace torchalgo::cudnn

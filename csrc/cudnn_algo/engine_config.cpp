// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/engine_config.h"

#include <algorithm>

#include "base/error.h"
#include "cudnn_algo/refusal.h"

namespace torchalgo::cudnn {
namespace {

// More notes than any cuDNN 9 has. cuDNN writes only as many as there are.
constexpr std::int64_t kNoteCapacity = 32;
constexpr std::int64_t kKnobCapacity = 64;

std::vector<Descriptor> raw_pointers(const std::vector<OwnedDescriptor>& parts) {
  std::vector<Descriptor> raw;
  raw.reserve(parts.size());
  for (const OwnedDescriptor& part : parts) raw.push_back(part.get());
  return raw;
}

// Reads a list of descriptors. cuDNN fills descriptors that the caller has made.
std::vector<OwnedDescriptor> read_descriptors(const OwnedDescriptor& from, AttributeName name,
                                              DescriptorType type, std::int64_t capacity) {
  std::vector<OwnedDescriptor> parts;
  parts.reserve(static_cast<std::size_t>(capacity));
  for (std::int64_t i = 0; i < capacity; ++i) parts.emplace_back(from.api(), type);
  std::vector<Descriptor> raw = raw_pointers(parts);
  const std::int64_t count = from.read_raw(name, AttributeType::kDescriptor, capacity, raw.data());
  while (static_cast<std::int64_t>(parts.size()) > std::max<std::int64_t>(count, 0)) {
    parts.pop_back();
  }
  return parts;
}

KnobType read_knob_type(const OwnedDescriptor& knob, AttributeName name) {
  KnobType type = 0;
  knob.read_raw(name, AttributeType::kKnobType, 1, &type);
  return type;
}

std::vector<OwnedDescriptor> make_choices(const Api& api, const Knobs& knobs) {
  std::vector<OwnedDescriptor> choices;
  for (const Knob& knob : knobs) {
    OwnedDescriptor choice(api, DescriptorType::kKnobChoice);
    choice.set_raw(AttributeName::kKnobChoiceType, AttributeType::kKnobType, 1, &knob.type);
    choice.set(AttributeName::kKnobChoiceValue, knob.value);
    choice.finalize("a knob choice");
    choices.push_back(std::move(choice));
  }
  return choices;
}

DescriptorAnswer finalized(OwnedDescriptor descriptor, const Target& target) {
  const Status status = descriptor.try_finalize();
  if (status == kSuccess) return {std::move(descriptor), kSuccess, {}};
  return {std::nullopt, status, refusal_text(descriptor.api(), status, target.isa)};
}

Knobs read_knobs(const OwnedDescriptor& config) {
  Knobs knobs;
  for (const OwnedDescriptor& choice :
       read_descriptors(config, AttributeName::kEngineConfigKnobChoices,
                        DescriptorType::kKnobChoice, kKnobCapacity)) {
    knobs.push_back({read_knob_type(choice, AttributeName::kKnobChoiceType),
                     choice.read<std::int64_t>(AttributeName::kKnobChoiceValue)});
  }
  return sort_by_name(std::move(knobs));
}

HeuristicConfig read_config(const OwnedDescriptor& config) {
  OwnedDescriptor engine(config.api(), DescriptorType::kEngine);
  Descriptor raw = engine.get();
  config.read_raw(AttributeName::kEngineConfigEngine, AttributeType::kDescriptor, 1, &raw);
  return {engine.read<std::int64_t>(AttributeName::kEngineGlobalIndex), read_knobs(config),
          workspace_bytes(config), read_notes(engine)};
}

}  // namespace

std::int64_t engine_count(const OperationGraph& graph) {
  return graph.graph.read<std::int64_t>(AttributeName::kOperationGraphEngineGlobalCount);
}

DescriptorAnswer make_engine(const OperationGraph& graph, const Target& target, std::int64_t id) {
  TORCHALGO_ASSERT((target.handle == nullptr) != (target.properties == nullptr));
  OwnedDescriptor engine(graph.graph.api(), DescriptorType::kEngine);
  engine.set(AttributeName::kEngineOperationGraph, graph.graph);
  engine.set(AttributeName::kEngineGlobalIndex, id);
  if (target.properties != nullptr) {
    engine.set(AttributeName::kEngineDeviceProperties, *target.properties);
  }
  return finalized(std::move(engine), target);
}

DescriptorAnswer make_config(const OwnedDescriptor& engine, const Knobs& knobs,
                             const Target& target) {
  const std::vector<OwnedDescriptor> choices = make_choices(engine.api(), knobs);
  OwnedDescriptor config(engine.api(), DescriptorType::kEngineConfig);
  config.set(AttributeName::kEngineConfigEngine, engine);
  if (!choices.empty()) {
    const std::vector<Descriptor> raw = raw_pointers(choices);
    config.set_raw(AttributeName::kEngineConfigKnobChoices, AttributeType::kDescriptor,
                   static_cast<std::int64_t>(raw.size()), raw.data());
  }
  return finalized(std::move(config), target);
}

std::int64_t workspace_bytes(const OwnedDescriptor& config) {
  return config.read<std::int64_t>(AttributeName::kEngineConfigWorkspaceSize);
}

EngineNotes read_notes(const OwnedDescriptor& engine) {
  return {engine.read_list<NumericalNote>(AttributeName::kEngineNumericalNote, kNoteCapacity),
          engine.read_list<BehaviorNote>(AttributeName::kEngineBehaviorNote, kNoteCapacity)};
}

std::vector<KnobRange> knob_ranges(const OwnedDescriptor& engine) {
  std::vector<KnobRange> ranges;
  for (const OwnedDescriptor& range : read_descriptors(engine, AttributeName::kEngineKnobInfo,
                                                       DescriptorType::kKnobInfo, kKnobCapacity)) {
    ranges.push_back({read_knob_type(range, AttributeName::kKnobInfoType),
                      range.read<std::int64_t>(AttributeName::kKnobInfoMinimum),
                      range.read<std::int64_t>(AttributeName::kKnobInfoMaximum),
                      range.read<std::int64_t>(AttributeName::kKnobInfoStride)});
  }
  return ranges;
}

std::vector<HeuristicConfig> ask_heuristic(const OperationGraph& graph, const Target& target,
                                           HeuristicMode mode, std::int64_t limit) {
  TORCHALGO_ASSERT((target.handle == nullptr) != (target.properties == nullptr));
  OwnedDescriptor heuristic(graph.graph.api(), DescriptorType::kEngineHeuristic);
  heuristic.set(AttributeName::kHeuristicOperationGraph, graph.graph);
  heuristic.set(AttributeName::kHeuristicMode, mode);
  if (target.properties != nullptr) {
    heuristic.set(AttributeName::kHeuristicDeviceProperties, *target.properties);
  }
  if (heuristic.try_finalize() != kSuccess) return {};
  const std::int64_t count = std::min(
      limit,
      heuristic.read_raw(AttributeName::kHeuristicResults, AttributeType::kDescriptor, 0, nullptr));
  if (count <= 0) return {};
  std::vector<HeuristicConfig> configs;
  for (const OwnedDescriptor& config : read_descriptors(heuristic, AttributeName::kHeuristicResults,
                                                        DescriptorType::kEngineConfig, count)) {
    configs.push_back(read_config(config));
  }
  return configs;
}

}  // namespace torchalgo::cudnn

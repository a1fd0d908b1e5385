// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/error_code.h"
#include "cudnn_algo/engine_config.h"
#include "cudnn_algo/refusal.h"

namespace torchalgo::cudnn {
namespace {

ExecutionPlanAnswer refused(DescriptorAnswer answer) {
  return {std::nullopt, answer.status, std::move(answer.refusal)};
}

ExecutionPlanAnswer finalize_plan(const Target& target, OwnedDescriptor config, EngineNotes notes) {
  OwnedDescriptor plan(config.api(), DescriptorType::kExecutionPlan);
  plan.set(AttributeName::kPlanEngineConfig, config);
  if (target.handle != nullptr) {
    plan.set_raw(AttributeName::kPlanHandle, AttributeType::kHandle, 1, &target.handle);
  } else {
    plan.set(AttributeName::kPlanDeviceProperties, *target.properties);
  }
  if (const Status status = plan.try_finalize(); status != kSuccess) {
    return {std::nullopt, status, refusal_text(plan.api(), status, target.isa)};
  }
  const auto bytes = plan.read<std::int64_t>(AttributeName::kPlanWorkspaceSize);
  return {ExecutionPlan{std::move(config), std::move(plan), bytes, std::move(notes)}, kSuccess, {}};
}

}  // namespace

bool has(const EngineNotes& notes, NumericalNote note) {
  return std::ranges::find(notes.numerical, note) != notes.numerical.end();
}

bool has(const EngineNotes& notes, BehaviorNote note) {
  return std::ranges::find(notes.behavior, note) != notes.behavior.end();
}

std::string json_of(const ExecutionPlan& plan) {
  constexpr std::int64_t kMostBytes = 1 << 20;
  const auto text = plan.descriptor.read_list<char>(AttributeName::kPlanJson, kMostBytes);
  return {text.begin(), std::ranges::find(text, '\0')};
}

ExecutionPlanAnswer make_execution_plan(const Api& api, const Target& target,
                                        const ConvProblem& conv, const Layouts& layouts,
                                        const EngineSpec& spec, std::int64_t alignment) {
  TORCHALGO_ASSERT((target.handle == nullptr) != (target.properties == nullptr));
  TORCHALGO_ASSERT(spec.weights == layouts.weights && spec.pattern == pattern_of(conv));
  try {
    const OperationGraph graph = build_graph(api, conv, layouts, target.handle, alignment);
    DescriptorAnswer engine = make_engine(graph, target, spec.engine);
    if (!engine.descriptor) return refused(std::move(engine));
    EngineNotes notes = read_notes(*engine.descriptor);
    DescriptorAnswer config = make_config(*engine.descriptor, spec.knobs, target);
    if (!config.descriptor) return refused(std::move(config));
    return finalize_plan(target, std::move(*config.descriptor), std::move(notes));
  } catch (const StatusError& error) {
    return {std::nullopt, error.status(), without_code(error.what())};
  }
}

}  // namespace torchalgo::cudnn

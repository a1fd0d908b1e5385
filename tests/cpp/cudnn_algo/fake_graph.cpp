// SPDX-License-Identifier: BSD-3-Clause
// The fake's backend (graph) API. What it copies of the real library's behaviour, as seen with
// cuDNN 9.19: a part must be finalized before it is set; a finalized descriptor takes no more
// attributes; descriptors that a get fills must exist already; asking for knob choices with room
// for none returns none, for heuristic results and knob infos their number; an engine that cannot
// do the problem says so when it is finalized, a knob value when its configuration is; an engine
// without handle and without device properties crashes.
#include <fmt/format.h>

#include <algorithm>

#include "cudnn_algo/fake_state.h"

namespace torchalgo::cudnn::fake::detail {
namespace {

struct Rule {
  AttributeName name;
  AttributeType type;
  bool is_required = true;
};

const std::vector<Rule>& rules_of(DescriptorType type) {
  using A = AttributeName;
  using T = AttributeType;
  static const std::map<DescriptorType, std::vector<Rule>> kRules = {
      {DescriptorType::kTensor,
       {{A::kTensorDataType, T::kDataType},
        {A::kTensorDimensions, T::kInt64},
        {A::kTensorStrides, T::kInt64},
        {A::kTensorUniqueId, T::kInt64},
        {A::kTensorByteAlignment, T::kInt64},
        {A::kTensorIsVirtual, T::kBoolean, false}}},
      {DescriptorType::kConvolution,
       {{A::kConvolutionSpatialDims, T::kInt64},
        {A::kConvolutionComputeType, T::kDataType},
        {A::kConvolutionMode, T::kConvolutionMode},
        {A::kConvolutionPrePaddings, T::kInt64},
        {A::kConvolutionPostPaddings, T::kInt64},
        {A::kConvolutionDilations, T::kInt64},
        {A::kConvolutionFilterStrides, T::kInt64}}},
      {DescriptorType::kPointwise,
       {{A::kPointwiseMode, T::kPointwiseMode},
        {A::kPointwiseMathPrecision, T::kDataType},
        {A::kPointwiseReluLowerClip, T::kDouble, false}}},
      {DescriptorType::kOperationConvolutionForward,
       {{A::kForwardX, T::kDescriptor},
        {A::kForwardW, T::kDescriptor},
        {A::kForwardY, T::kDescriptor},
        {A::kForwardConvolution, T::kDescriptor},
        {A::kForwardAlpha, T::kFloat},
        {A::kForwardBeta, T::kFloat}}},
      {DescriptorType::kOperationConvolutionBackwardData,
       {{A::kBackwardDataDx, T::kDescriptor},
        {A::kBackwardDataW, T::kDescriptor},
        {A::kBackwardDataDy, T::kDescriptor},
        {A::kBackwardDataConvolution, T::kDescriptor},
        {A::kBackwardDataAlpha, T::kFloat},
        {A::kBackwardDataBeta, T::kFloat}}},
      {DescriptorType::kOperationConvolutionBackwardFilter,
       {{A::kBackwardFilterX, T::kDescriptor},
        {A::kBackwardFilterDw, T::kDescriptor},
        {A::kBackwardFilterDy, T::kDescriptor},
        {A::kBackwardFilterConvolution, T::kDescriptor},
        {A::kBackwardFilterAlpha, T::kFloat},
        {A::kBackwardFilterBeta, T::kFloat}}},
      {DescriptorType::kOperationPointwise,
       {{A::kOperationPointwiseDescriptor, T::kDescriptor},
        {A::kOperationPointwiseX, T::kDescriptor},
        {A::kOperationPointwiseB, T::kDescriptor, false},
        {A::kOperationPointwiseY, T::kDescriptor}}},
      {DescriptorType::kOperationGraph,
       {{A::kOperationGraphOps, T::kDescriptor}, {A::kOperationGraphHandle, T::kHandle, false}}},
      {DescriptorType::kEngine,
       {{A::kEngineOperationGraph, T::kDescriptor},
        {A::kEngineGlobalIndex, T::kInt64},
        {A::kEngineDeviceProperties, T::kDescriptor, false}}},
      {DescriptorType::kEngineConfig,
       {{A::kEngineConfigEngine, T::kDescriptor},
        {A::kEngineConfigKnobChoices, T::kDescriptor, false}}},
      {DescriptorType::kKnobChoice,
       {{A::kKnobChoiceType, T::kKnobType}, {A::kKnobChoiceValue, T::kInt64}}},
      {DescriptorType::kEngineHeuristic,
       {{A::kHeuristicOperationGraph, T::kDescriptor},
        {A::kHeuristicMode, T::kHeuristicMode},
        {A::kHeuristicDeviceProperties, T::kDescriptor, false}}},
      {DescriptorType::kExecutionPlan,
       {{A::kPlanEngineConfig, T::kDescriptor},
        {A::kPlanHandle, T::kHandle, false},
        {A::kPlanDeviceProperties, T::kDescriptor, false}}},
      {DescriptorType::kVariantPack,
       {{A::kVariantPackUniqueIds, T::kInt64},
        {A::kVariantPackDataPointers, T::kVoidPointer},
        {A::kVariantPackWorkspace, T::kVoidPointer, false}}},
      {DescriptorType::kDeviceProperties,
       {{A::kDevicePropertiesJson, T::kChar, false},
        {A::kDevicePropertiesDeviceId, T::kInt32, false},
        {A::kDevicePropertiesHandle, T::kHandle, false}}},
      {DescriptorType::kKnobInfo, {}},
  };
  return kRules.at(type);
}

std::size_t size_of(AttributeType type) {
  switch (type) {
    case AttributeType::kBoolean:
    case AttributeType::kChar:
      return 1;
    case AttributeType::kHandle:
    case AttributeType::kInt64:
    case AttributeType::kDouble:
    case AttributeType::kVoidPointer:
    case AttributeType::kDescriptor:
      return 8;
    default:
      return 4;
  }
}

Status set_attribute(State& state, Descriptor descriptor, AttributeName name, AttributeType type,
                     std::int64_t count, const void* data) {
  const ObjectPtr object = state.find(descriptor);
  if (object == nullptr) return state.fail(kBadParam, "set: no such descriptor");
  if (object->is_finalized) return state.fail(kBadParam, "set: the descriptor is finalized");
  if (data == nullptr && count > 0) return state.fail(kBadParamNullPointer, "set: null");
  const Rule* rule = nullptr;
  for (const Rule& known : rules_of(object->type)) {
    if (known.name == name) rule = &known;
  }
  const std::string id = fmt::format("attribute {}", static_cast<int>(name));
  if (rule == nullptr) return state.fail(kBadParam, id + " is none of this descriptor");
  const bool is_scale = rule->type == AttributeType::kFloat && type == AttributeType::kDouble;
  if (rule->type != type && !is_scale) return state.fail(2010, id + " has another type");
  if (count < 1 && type != AttributeType::kDescriptor) return state.fail(kBadParam, id + " empty");
  Value value{type, count, {}, {}};
  const char* const bytes = static_cast<const char*>(data);
  value.bytes.assign(bytes, bytes + static_cast<std::size_t>(count) * size_of(type));
  if (type == AttributeType::kDescriptor) {
    for (std::int64_t i = 0; i < count; ++i) {
      const ObjectPtr part = state.find(static_cast<const Descriptor*>(data)[i]);
      if (part == nullptr) return state.fail(kBadParam, id + ": no such descriptor");
      if (!part->is_finalized) return state.fail(2004, id + " is not finalized");
      value.parts.push_back(part);
    }
  }
  object->values[name] = std::move(value);
  return kSuccess;
}

Status finalize_descriptor(State& state, Descriptor descriptor) {
  const ObjectPtr object = state.find(descriptor);
  if (object == nullptr) return state.fail(kBadParam, "finalize: no such descriptor");
  if (object->is_finalized) return state.fail(kBadParam, "finalize: twice");
  for (const Rule& rule : rules_of(object->type)) {
    if (rule.is_required && !object->values.contains(rule.name)) {
      return state.fail(
          kBadParam, fmt::format("finalize: attribute {} is not set", static_cast<int>(rule.name)));
    }
  }
  const Status status = finalize_by_type(state, *object);
  object->is_finalized = status == kSuccess;
  return status;
}

// An answer to get_attribute: numbers, or contents for descriptors that the caller made.
struct Found {
  Status status = kSuccess;
  AttributeType type = AttributeType::kInt64;
  std::vector<char> bytes;
  std::vector<ObjectPtr> parts;
};

template <typename T>
Found found(AttributeType type, const std::vector<T>& values) {
  const char* const first = reinterpret_cast<const char*>(values.data());
  return {kSuccess, type, {first, first + values.size() * sizeof(T)}, {}};
}

ObjectPtr make_knob_choice(KnobType type, std::int64_t value) {
  auto choice = std::make_shared<Object>();
  choice->type = DescriptorType::kKnobChoice;
  choice->is_finalized = true;
  const auto bytes = [](const auto& number) {
    const char* const first = reinterpret_cast<const char*>(&number);
    return std::vector<char>(first, first + sizeof number);
  };
  choice->values[AttributeName::kKnobChoiceType] = {AttributeType::kKnobType, 1, bytes(type), {}};
  choice->values[AttributeName::kKnobChoiceValue] = {AttributeType::kInt64, 1, bytes(value), {}};
  return choice;
}

std::vector<ObjectPtr> knob_infos(std::int64_t engine) {
  std::vector<ObjectPtr> infos;
  for (const KnobModel& knob : engine_models()[engine].knobs) {
    auto info = std::make_shared<Object>();
    info->type = DescriptorType::kKnobInfo;
    info->is_finalized = true;
    info->knob = knob;
    infos.push_back(std::move(info));
  }
  return infos;
}

Found find_attribute(const Object& object, AttributeName name) {
  using A = AttributeName;
  using T = AttributeType;
  using Numbers = std::vector<std::int64_t>;
  switch (name) {
    case A::kOperationGraphEngineGlobalCount:
      return found(T::kInt64, Numbers{static_cast<std::int64_t>(engine_models().size())});
    case A::kHeuristicResults:
      return {kSuccess, T::kDescriptor, {}, object.results};
    case A::kEngineGlobalIndex:
      return found(T::kInt64, Numbers{object.engine});
    case A::kEngineNumericalNote:
      return found(T::kNumericalNote, engine_models()[object.engine].numerical);
    case A::kEngineBehaviorNote:
      return found(T::kBehaviorNote, engine_models()[object.engine].behavior);
    case A::kEngineKnobInfo:
      return {kSuccess, T::kDescriptor, {}, knob_infos(object.engine)};
    case A::kKnobInfoType:
      return found(T::kKnobType, std::vector<KnobType>{object.knob.type});
    case A::kKnobInfoMinimum:
      return found(T::kInt64, Numbers{object.knob.minimum});
    case A::kKnobInfoMaximum:
      return found(T::kInt64, Numbers{object.knob.maximum});
    case A::kKnobInfoStride:
      return found(T::kInt64, Numbers{object.knob.stride});
    case A::kEngineConfigEngine:
      return {kSuccess, T::kDescriptor, {}, {part_of(object, name)}};
    case A::kEngineConfigKnobChoices: {
      Found choices{kSuccess, T::kDescriptor, {}, {}};
      for (const auto& [type, value] : object.knobs) {
        choices.parts.push_back(make_knob_choice(type, value));
      }
      return choices;
    }
    case A::kEngineConfigWorkspaceSize:
    case A::kPlanWorkspaceSize:
      return found(T::kInt64, Numbers{object.workspace});
    case A::kPlanJson:
      return found(T::kChar, std::vector<char>{'{', '}'});
    default: {
      const auto at = object.values.find(name);
      if (at == object.values.end()) return {.status = kBadParam};
      return {kSuccess, at->second.type, at->second.bytes, at->second.parts};
    }
  }
}

Status get_attribute(State& state, Descriptor descriptor, AttributeName name, AttributeType type,
                     std::int64_t requested, std::int64_t* count, void* data) {
  const ObjectPtr object = state.find(descriptor);
  if (object == nullptr) return state.fail(kBadParam, "get: no such descriptor");
  if (!object->is_finalized) return state.fail(2004, "get: not finalized");
  const Found answer = find_attribute(*object, name);
  if (answer.status != kSuccess) return state.fail(answer.status, "get: no such attribute");
  if (answer.type != type) return state.fail(2010, "get: the attribute has another type");
  const bool has_parts = type == AttributeType::kDescriptor;
  const auto available = static_cast<std::int64_t>(has_parts ? answer.parts.size()
                                                             : answer.bytes.size() / size_of(type));
  const bool counts_only_filled = name == AttributeName::kEngineConfigKnobChoices;
  if (count != nullptr) *count = counts_only_filled ? std::min(available, requested) : available;
  for (std::int64_t i = 0; i < std::min(available, requested) && has_parts; ++i) {
    const ObjectPtr target = state.find(static_cast<Descriptor*>(data)[i]);
    if (target == nullptr) return state.fail(kBadParam, "get: fills a descriptor that is none");
    if (target->type != answer.parts[i]->type) return state.fail(2012, "get: of another type");
    const std::thread::id thread = target->thread;
    *target = *answer.parts[i];
    target->thread = thread;
  }
  if (!has_parts && data != nullptr && std::min(available, requested) > 0) {
    std::memcpy(data, answer.bytes.data(),
                static_cast<std::size_t>(std::min(available, requested)) * size_of(type));
  }
  return kSuccess;
}

}  // namespace

void add_graph_functions(const std::shared_ptr<State>& state, Api& api) {
  api.create_descriptor = [state](DescriptorType type, Descriptor* made) -> Status {
    const std::lock_guard lock(state->mutex);
    auto object = std::make_shared<Object>();
    object->type = type;
    *made = state->add(std::move(object));
    return kSuccess;
  };
  api.destroy_descriptor = [state](Descriptor descriptor) {
    const std::lock_guard lock(state->mutex);
    return state->destroy(descriptor);
  };
  api.finalize = [state](Descriptor descriptor) {
    const std::lock_guard lock(state->mutex);
    return finalize_descriptor(*state, descriptor);
  };
  api.set_attribute = [state](Descriptor descriptor, AttributeName name, AttributeType type,
                              std::int64_t count, const void* data) {
    const std::lock_guard lock(state->mutex);
    return set_attribute(*state, descriptor, name, type, count, data);
  };
  api.get_attribute = [state](Descriptor descriptor, AttributeName name, AttributeType type,
                              std::int64_t requested, std::int64_t* count, void* data) {
    const std::lock_guard lock(state->mutex);
    return get_attribute(*state, descriptor, name, type, requested, count, data);
  };
  api.execute = [state](Handle handle, Descriptor plan, Descriptor pack) {
    return execute_plan(*state, handle, plan, pack);
  };
}

}  // namespace torchalgo::cudnn::fake::detail

// SPDX-License-Identifier: BSD-3-Clause
// What the fake checks and finds when a descriptor is finalized.
#include <fmt/format.h>

#include <algorithm>

#include "cudnn_algo/fake_state.h"

namespace torchalgo::cudnn::fake::detail {
namespace {

Status finalize_tensor(State& state, Object& tensor) {
  if (!to_element(value_of<DataType>(tensor, AttributeName::kTensorDataType))) {
    return state.fail(kNotSupported, "tensor: the fake has no such type");
  }
  const Place place = place_of(tensor);
  const bool is_right =
      place.sizes.size() == place.strides.size() && place.sizes.size() >= 4 &&
      std::all_of(place.sizes.begin(), place.sizes.end(), [](std::int64_t n) { return n > 0; });
  return is_right ? kSuccess : state.fail(kBadParam, "tensor: sizes and strides do not fit");
}

Status finalize_convolution(State& state, Object& convolution) {
  const auto rank = static_cast<std::size_t>(
      value_of<std::int64_t>(convolution, AttributeName::kConvolutionSpatialDims));
  for (const AttributeName name :
       {AttributeName::kConvolutionPrePaddings, AttributeName::kConvolutionPostPaddings,
        AttributeName::kConvolutionDilations, AttributeName::kConvolutionFilterStrides}) {
    if (values_of<std::int64_t>(convolution, name).size() != rank) {
      return state.fail(kBadParam, "convolution: a list is not as long as its spatial dims");
    }
  }
  return kSuccess;
}

Status finalize_operation(State& state, Object& operation) {
  if (!is_consistent(geometry_of(operation))) {
    return state.fail(2008, "operation: the sizes of x, w and y do not fit");
  }
  return kSuccess;
}

Status finalize_graph(State& state, Object& graph) {
  const auto& operations = graph.values.at(AttributeName::kOperationGraphOps).parts;
  if (operations.empty()) return state.fail(kBadParam, "graph: no operations");
  const Object& first = *operations[0];
  if (first.type == DescriptorType::kOperationPointwise) {
    return state.fail(kNotSupportedGraphPattern, "graph: begins with no convolution");
  }
  const ConvolutionNames names = names_of(first.type);
  graph.question = {.role = names.role,
                    .has_epilogue = operations.size() > 1,
                    .geometry = geometry_of(first),
                    .x = place_of(*part_of(first, names.x)),
                    .w = place_of(*part_of(first, names.w)),
                    .y = place_of(*part_of(first, names.y)),
                    .sm = -1,
                    .has_compiler = state.options.has_compiler};
  const Handle handle = value_of<Handle>(graph, AttributeName::kOperationGraphHandle);
  if (handle != nullptr) {
    if (!state.accepts(handle)) return kBadParamNullPointer;
    graph.question->sm = state.options.sm;
  }
  return kSuccess;
}

// The GPU that an engine, heuristic or plan is for: that of its device properties, else the one
// that its graph knows by a handle; -1: neither, at which the real library dies.
int sm_of(State& state, const Object& object, AttributeName properties, int otherwise) {
  const ObjectPtr given = part_of(object, properties);
  const int sm = given != nullptr ? static_cast<int>(given->engine) : otherwise;
  if (sm < 0) ++state.stats.crashes;
  return sm;
}

Status finalize_engine(State& state, Object& engine) {
  const ObjectPtr graph = part_of(engine, AttributeName::kEngineOperationGraph);
  engine.question = graph->question;
  engine.engine = value_of<std::int64_t>(engine, AttributeName::kEngineGlobalIndex);
  engine.question->sm =
      sm_of(state, engine, AttributeName::kEngineDeviceProperties, engine.question->sm);
  if (engine.question->sm < 0) return kInternalError;
  const Status status = support(*engine.question, engine.engine);
  return status == kSuccess
             ? status
             : state.fail(status, fmt::format("engine {} cannot do this problem", engine.engine));
}

Status finalize_configuration(State& state, Object& configuration) {
  const ObjectPtr engine = part_of(configuration, AttributeName::kEngineConfigEngine);
  configuration.question = engine->question;
  configuration.engine = engine->engine;
  KnobValues given;
  const auto choices = configuration.values.find(AttributeName::kEngineConfigKnobChoices);
  if (choices != configuration.values.end()) {
    for (const ObjectPtr& choice : choices->second.parts) {
      const auto type = value_of<KnobType>(*choice, AttributeName::kKnobChoiceType);
      if (!given.emplace(type, value_of<std::int64_t>(*choice, AttributeName::kKnobChoiceValue))
               .second) {
        return state.fail(2009, "configuration: a knob is set twice");
      }
    }
  }
  KnobAnswer answer = complete(engine->engine, given);
  if (answer.status != kSuccess) {
    return state.fail(answer.status, "configuration: a knob has no such value");
  }
  const bool compiles =
      !engine_models()[engine->engine].behavior.empty() &&
      engine_models()[engine->engine].behavior[0] == BehaviorNote::kRuntimeCompilation;
  if (compiles && !state.options.has_compiler) {
    return state.fail(kNotSupportedRuntimePrerequisiteMissing, "configuration: no libcuda");
  }
  configuration.knobs = std::move(answer.values);
  configuration.workspace =
      workspace_bytes(*configuration.question, configuration.engine, configuration.knobs);
  return kSuccess;
}

Status finalize_plan(State& state, Object& plan) {
  const ObjectPtr configuration = part_of(plan, AttributeName::kPlanEngineConfig);
  plan.question = configuration->question;
  plan.engine = configuration->engine;
  plan.workspace = configuration->workspace;
  const Handle handle = value_of<Handle>(plan, AttributeName::kPlanHandle);
  if (handle != nullptr ? !state.accepts(handle)
                        : sm_of(state, plan, AttributeName::kPlanDeviceProperties, -1) < 0) {
    return kInternalError;
  }
  ++state.stats.plans;
  return kSuccess;
}

// A finalized configuration of an engine that supports the question, null if there is none.
ObjectPtr make_configuration(State& state, const ObjectPtr& graph, const Question& question,
                             std::int64_t engine_id) {
  if (support(question, engine_id) != kSuccess) return nullptr;
  auto engine = std::make_shared<Object>();
  engine->type = DescriptorType::kEngine;
  engine->is_finalized = true;
  engine->question = question;
  engine->engine = engine_id;
  engine->thread = std::this_thread::get_id();
  engine->values[AttributeName::kEngineOperationGraph] = {
      AttributeType::kDescriptor, 1, std::vector<char>(8), {graph}};
  auto configuration = std::make_shared<Object>();
  configuration->type = DescriptorType::kEngineConfig;
  configuration->values[AttributeName::kEngineConfigEngine] = {
      AttributeType::kDescriptor, 1, std::vector<char>(8), {engine}};
  if (finalize_configuration(state, *configuration) != kSuccess) return nullptr;
  configuration->is_finalized = true;
  return configuration;
}

Status finalize_heuristic(State& state, Object& heuristic) {
  const ObjectPtr graph = part_of(heuristic, AttributeName::kHeuristicOperationGraph);
  Question question = *graph->question;
  question.sm = sm_of(state, heuristic, AttributeName::kHeuristicDeviceProperties, question.sm);
  if (question.sm < 0) return kInternalError;
  const auto mode = value_of<HeuristicMode>(heuristic, AttributeName::kHeuristicMode);
  const std::vector<std::int64_t> order =
      mode == HeuristicMode::kFallback
          ? std::vector<std::int64_t>{kGeneric}
          : std::vector<std::int64_t>{kDownConverting, kTensorCores,     kAtomics,
                                      kPrecomputed,    kRuntimeCompiled, kGeneric};
  for (const std::int64_t engine : order) {
    if (ObjectPtr configuration = make_configuration(state, graph, question, engine)) {
      heuristic.results.push_back(std::move(configuration));
    }
  }
  return kSuccess;
}

Status finalize_properties(State& state, Object& properties) {
  const std::string& own = state.options.properties;
  if (properties.values.contains(AttributeName::kDevicePropertiesDeviceId) && !own.empty()) {
    properties.values[AttributeName::kDevicePropertiesJson] = {
        AttributeType::kChar, static_cast<std::int64_t>(own.size()), {own.begin(), own.end()}, {}};
  }
  const Value* const json = [&]() -> const Value* {
    const auto at = properties.values.find(AttributeName::kDevicePropertiesJson);
    return at == properties.values.end() ? nullptr : &at->second;
  }();
  if (json == nullptr) return state.fail(kNotInitialized, "device properties: no device");
  const std::string text(json->bytes.begin(), json->bytes.end());
  const auto at = text.find("\"deviceVer\":");
  if (at == std::string::npos) return state.fail(kBadParam, "device properties: no deviceVer");
  properties.engine = std::stoi(text.substr(at + 12)) / 10;
  return kSuccess;
}

Status finalize_pack(State& state, Object& pack) {
  const bool is_right = pack.values.at(AttributeName::kVariantPackUniqueIds).count ==
                        pack.values.at(AttributeName::kVariantPackDataPointers).count;
  return is_right ? kSuccess : state.fail(kBadParam, "variant pack: lists of different lengths");
}

}  // namespace

Status finalize_by_type(State& state, Object& object) {
  switch (object.type) {
    case DescriptorType::kTensor:
      return finalize_tensor(state, object);
    case DescriptorType::kConvolution:
      return finalize_convolution(state, object);
    case DescriptorType::kOperationConvolutionForward:
    case DescriptorType::kOperationConvolutionBackwardData:
    case DescriptorType::kOperationConvolutionBackwardFilter:
      return finalize_operation(state, object);
    case DescriptorType::kOperationGraph:
      return finalize_graph(state, object);
    case DescriptorType::kEngine:
      return finalize_engine(state, object);
    case DescriptorType::kEngineConfig:
      return finalize_configuration(state, object);
    case DescriptorType::kExecutionPlan:
      return finalize_plan(state, object);
    case DescriptorType::kEngineHeuristic:
      return finalize_heuristic(state, object);
    case DescriptorType::kDeviceProperties:
      return finalize_properties(state, object);
    case DescriptorType::kVariantPack:
      return finalize_pack(state, object);
    default:
      return kSuccess;
  }
}

ConvolutionNames names_of(DescriptorType type) {
  using A = AttributeName;
  if (type == DescriptorType::kOperationConvolutionForward) {
    return {Role::kForward, A::kForwardX, A::kForwardW, A::kForwardY, A::kForwardConvolution};
  }
  if (type == DescriptorType::kOperationConvolutionBackwardData) {
    return {Role::kBackwardData, A::kBackwardDataDx, A::kBackwardDataW, A::kBackwardDataDy,
            A::kBackwardDataConvolution};
  }
  return {Role::kBackwardFilter, A::kBackwardFilterX, A::kBackwardFilterDw, A::kBackwardFilterDy,
          A::kBackwardFilterConvolution};
}

Place place_of(const Object& tensor) {
  return {*to_element(value_of<DataType>(tensor, AttributeName::kTensorDataType)),
          values_of<std::int64_t>(tensor, AttributeName::kTensorDimensions),
          values_of<std::int64_t>(tensor, AttributeName::kTensorStrides),
          value_of<std::int64_t>(tensor, AttributeName::kTensorByteAlignment)};
}

Geometry geometry_of(const Object& operation) {
  const ConvolutionNames names = names_of(operation.type);
  const auto sizes = [&](AttributeName name) {
    return values_of<std::int64_t>(*part_of(operation, name), AttributeName::kTensorDimensions);
  };
  const ObjectPtr convolution = part_of(operation, names.convolution);
  const auto triple = [&](AttributeName name) {
    return values_of<std::int64_t>(*convolution, name);
  };
  return make_geometry(sizes(names.x), sizes(names.w), sizes(names.y),
                       triple(AttributeName::kConvolutionPrePaddings),
                       triple(AttributeName::kConvolutionPostPaddings),
                       triple(AttributeName::kConvolutionFilterStrides),
                       triple(AttributeName::kConvolutionDilations));
}

std::optional<Element> to_element(DataType type) {
  switch (type) {
    case DataType::kFloat:
      return Element::kF32;
    case DataType::kDouble:
      return Element::kF64;
    case DataType::kHalf:
      return Element::kF16;
    case DataType::kBfloat16:
      return Element::kBf16;
  }
  return std::nullopt;
}

}  // namespace torchalgo::cudnn::fake::detail

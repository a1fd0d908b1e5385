// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/run.h"

#include <array>
#include <string>
#include <utility>

#include "base/error.h"
#include "cudnn_algo/execution.h"
#include "cudnn_algo/graph.h"
#include "cudnn_algo/handles.h"
#include "cudnn_algo/plan.h"
#include "cudnn_algo/refusal.h"

namespace torchalgo::cudnn {
namespace {

Bindings bind(const PatternInfo& pattern, const EngineCall& call, AlignedTensors& tensors,
              void* workspace) {
  Bindings bindings;
  switch (pattern.direction) {
    case Direction::kForward:
      bindings.add(kSrcUid, tensors.input(call.args.src[0]));
      bindings.add(kWeightsUid, tensors.input(call.args.packed[0].weights));
      bindings.add(kDstUid, tensors.output(call.args.dst));
      break;
    case Direction::kBackwardData:
      bindings.add(kDstUid, tensors.input(call.args.src[0]));
      bindings.add(kWeightsUid, tensors.input(call.args.packed[0].weights));
      bindings.add(kSrcUid, tensors.output(call.args.dst));
      break;
    case Direction::kBackwardFilter:
      bindings.add(kSrcUid, tensors.input(call.args.src[0]));
      bindings.add(kDstUid, tensors.input(call.args.src[1]));
      bindings.add(kWeightsUid, tensors.output(call.args.dst));
      break;
  }
  if (pattern.bias) bindings.add(kBiasUid, tensors.input(call.args.packed[0].bias));
  if (pattern.add) bindings.add(kResidualUid, tensors.input(call.args.residual));
  bindings.workspace = workspace;
  return bindings;
}

struct EngineExecutable final : Executable {
  EngineExecutable(Pattern of, ExecutionPlan made) : pattern(of), plan(std::move(made)) {
    workspace_bytes = plan.workspace_bytes;
  }

  const Pattern pattern;
  ExecutionPlan plan;
};

OwnedDescriptor make_pack(const Api& api, const Bindings& bindings) {
  OwnedDescriptor pack(api, DescriptorType::kVariantPack);
  pack.set_raw(AttributeName::kVariantPackUniqueIds, AttributeType::kInt64, bindings.count,
               bindings.ids.data());
  pack.set_raw(AttributeName::kVariantPackDataPointers, AttributeType::kVoidPointer, bindings.count,
               bindings.data.data());
  pack.set_raw(AttributeName::kVariantPackWorkspace, AttributeType::kVoidPointer, 1,
               &bindings.workspace);
  pack.finalize("the variant pack");
  return pack;
}

// Returns cuDNN's own message for its last failure in this thread. Refusals do not contain it.
std::string last_error(const Api& api) {
  std::array<char, 1024> text{};
  if (api.get_last_error_string) api.get_last_error_string(text.data(), text.size());
  text.back() = '\0';
  return text[0] == '\0' ? "" : fmt::format(": {}", text.data());
}

std::shared_ptr<Executable> build(const OwnHandle& handle, const EngineSpec& spec,
                                  const EngineCall& call) {
  const Api& api = *handle.api;
  const auto& conv = std::get<ConvProblem>(call.problem);
  const auto too_large = size_refusal(conv);
  TORCHALGO_CHECK(!too_large, "TA5103 cuDNN {} ({})", *too_large, describe(api, call));
  ExecutionPlanAnswer answer =
      make_execution_plan(api, Target{.handle = handle.raw, .properties = nullptr, .isa = {}}, conv,
                          layouts_of(call.primitive), spec);
  if (!answer.plan) {
    throw StatusError(answer.status,
                      fmt::format("TA5103 cuDNN cannot make this plan on this machine: {}{}",
                                  answer.refusal, last_error(api)));
  }
  return std::make_shared<EngineExecutable>(spec.pattern, std::move(*answer.plan));
}

}  // namespace

at::Tensor run_engine(const std::shared_ptr<const Api>& api, const Runtime& runtime,
                      const EngineSpec& spec, const EngineCall& call, EngineStates& states) {
  const auto on_device = runtime.on_device(call.args.dst.device().index());
  with_description(*api, call, [&] {
    OwnHandle& handle = handle_of_thread(api, runtime);
    EngineState& state = states.of(handle.raw);
    const auto found = find_or_build(state.executable, runtime, handle, call,
                                     [&] { return build(handle, spec, call); });
    const auto& executable = static_cast<const EngineExecutable&>(*found);
    const Workspace workspace(*api, executable, call);
    AlignedTensors tensors;
    const Bindings bindings = bind(info(executable.pattern), call, tensors, workspace.data());
    if (!state.pack || state.bound != bindings) {
      state.pack = make_pack(*api, bindings);
      state.bound = bindings;
    }
    check(*api, api->execute(handle.raw, executable.plan.descriptor.get(), state.pack->get()),
          "cudnnBackendExecute");
    note_run(found, runtime);
    tensors.finish();
  });
  return call.args.dst;
}

EngineSpec require_engine_spec(const Primitive& primitive) {
  auto spec = parse_engine_spec(primitive.name);
  TORCHALGO_CHECK(spec, "TA5106 '{}' is no engine of cuDNN: expected cudnn9.<pattern>.e<number>",
                  primitive.name);
  return *std::move(spec);
}

Packed pack_engine(const EngineSpec& spec, const Weights& weights) {
  if (info(spec.pattern).direction == Direction::kBackwardFilter) return {};
  const bool has_bias = info(spec.pattern).bias;
  return {{pack_weights(weights[0].weights, spec.weights),
           has_bias ? weights[0].bias.contiguous() : at::Tensor()}};
}

at::Tensor pack_weights(const at::Tensor& weights, Layout layout) {
  if (layout == Layout::kNchw) return weights.contiguous();
  return weights.contiguous(weights.dim() == 5 ? at::MemoryFormat::ChannelsLast3d
                                               : at::MemoryFormat::ChannelsLast);
}

}  // namespace torchalgo::cudnn

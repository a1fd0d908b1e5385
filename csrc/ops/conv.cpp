// SPDX-License-Identifier: BSD-3-Clause
#include "ops/conv.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <array>
#include <memory>
#include <unordered_map>
#include <utility>

#include "aten_algo/strided.h"
#include "base/error.h"
#include "ops/recorded_runs.h"
#include "ops/relayout.h"
#include "ops/resolve_choice.h"
#include "ops/torch_path.h"
#include "provider/cuda_device.h"
#include "provider/epilogue.h"
#include "provider/run_prepared.h"

namespace torchalgo {
namespace {

// The most decisions that a thread caches. If there are more, the cache is cleared.
constexpr std::size_t kMaxDecisions = 4096;

// The decision for a problem, given flags and layouts.
struct Decision {
  bool is_free = false;  // PyTorch chooses: the rest is not set
  std::string spelling;  // of the whole problem
  Resolution resolution;
  ResultForm dst;  // of the algorithm's result
};

// Everything that a decision depends on.
struct Key {
  ConvProblem problem;
  ConvRequest request;
  at::Device device;
  int threads;
  std::uint64_t settings_generation;
  const Algorithms* algorithms;
  std::string choice;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  // Hashes only the numbers that differ between the layers of a model.
  std::size_t operator()(const Key& key) const {
    const ConvProblem& p = key.problem;
    std::uint64_t hash = std::hash<std::string>()(key.choice) + static_cast<int>(p.direction);
    for (const std::int64_t number :
         {p.n, p.c, p.h, p.w, p.k, p.r, p.s, p.stride_h, p.pad_h, p.dilation_h, p.groups}) {
      hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

// The operands with two or three image dimensions.
struct Operands {
  at::Tensor src, weights, dst;
};

at::Tensor with_two_image_dims(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() == 3 ? tensor.unsqueeze(2) : tensor;
}

Layout layout_or(const at::Tensor& tensor, Layout result) {
  return tensor.defined() ? strided_layout(tensor) : result;
}

bool needs_determinism() {
  const auto& context = at::globalContext();
  return context.deterministicCuDNN() ||
         (context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly());
}

ConvRequest request_for(const ConvCall& call, const Operands& operands) {
  const Layout result =
      call.result_format == at::MemoryFormat::Contiguous ? Layout::kNchw : Layout::kNhwc;
  ConvRequest request;
  request.src = layout_or(operands.src, result);
  request.weights = layout_or(operands.weights, result);
  request.dst = layout_or(operands.dst, result);
  request.needs_determinism = needs_determinism();
  return request;
}

Decision decide(const ConvProblem& problem, ConvRequest request, const at::Tensor& first,
                const Algorithms& algorithms, std::string_view choice,
                const ConvSettings& settings) {
  Decision decision;
  decision.spelling = to_string(Problem(problem));
  const DeviceKind kind = first.is_cuda() ? DeviceKind::kCuda : DeviceKind::kCpu;
  request.name = requested_name(parse_choice(choice), problem, kind, settings);
  decision.is_free = request.name.empty();
  if (decision.is_free) return decision;
  request.conflict = settings.conflict;
  decision.resolution = resolve_choice(request, problem, algorithms, device_of(first.device()));
  const Kernel& kernel = *decision.resolution.kernel;
  decision.dst =
      result_form(kernel.problem, result_layout(kernel.problem, kernel.primitive), first.device());
  return decision;
}

using Decisions = std::unordered_map<Key, std::shared_ptr<const Decision>, KeyHash>;

std::shared_ptr<const Decision> find_or_decide(const ConvProblem& problem,
                                               const ConvRequest& request, const at::Tensor& first,
                                               const Algorithms& algorithms,
                                               std::string_view choice) {
  thread_local Decisions decisions;
  const ConvSettings& settings = conv_settings();
  Key key = {problem,
             request,
             first.device(),
             at::get_num_threads(),
             settings.generation,
             &algorithms,
             std::string(choice)};
  if (const auto it = decisions.find(key); it != decisions.end()) return it->second;
  auto decision = std::make_shared<const Decision>(
      decide(problem, request, first, algorithms, choice, settings));
  if (decisions.size() >= kMaxDecisions) decisions.clear();
  decisions.emplace(std::move(key), decision);
  return decision;
}

bool requests_nothing(std::string_view choice) {
  const Choice parsed = parse_choice(choice);
  return parsed.empty() || parsed.front().name == kFree;
}

void note_fallback(const Decision& decision) {
  const Resolution& resolution = decision.resolution;
  const bool is_new = count_fallback(decision.spelling, resolution.reason);
  TORCHALGO_CHECK(
      !is_strict(),
      "TA4307 torchalgo: the choice for {} cannot run, and set_strict(True) forbids {}: {}; "
      "choose another algorithm, or call torchalgo.set_strict(False)",
      decision.spelling, resolution.name(), resolution.reason);
  if (is_new) {
    TORCH_WARN("torchalgo: ", resolution.reason, "; ", resolution.name(), " runs instead");
  }
}

// Handles a call that no problem describes although its argument names a primitive.
void note_foreign(const ConvCall& call, std::string_view choice) {
  const at::Tensor& first = call.src.defined() ? call.src : call.dst;
  if (!first.defined() || first.sym_numel() == 0 || requests_nothing(choice)) return;
  const std::string what =
      fmt::format("a convolution of {} {} tensors on {}", c10::str(first.layout()),
                  c10::toString(first.scalar_type()), first.device().str());
  const std::string reason =
      fmt::format("'{}' is for dense f64, f32, f16 or bf16 tensors on a CPU or a CUDA GPU", choice);
  const bool is_new = count_fallback(what, reason);
  TORCHALGO_CHECK(!is_strict(),
                  "TA4307 torchalgo: {} cannot run with the chosen algorithm, and set_strict(True) "
                  "forbids PyTorch's own: {}",
                  what, reason);
  if (is_new) TORCH_WARN("torchalgo: ", reason, "; PyTorch runs ", what);
}

// The caller may change the weights between calls, so each call packs them.
Packed pack(const Resolution& resolution, const ConvCall& call, const at::Tensor& weights) {
  const auto& problem = std::get<ConvProblem>(resolution.kernel->problem);
  if (problem.direction == Direction::kBackwardFilter) return {};
  LayerWeights plain = {weights, problem.epilogue.empty() ? at::Tensor() : call.bias};
  if (!resolution.algorithm->runs_on_cuda) {  // algorithms of libraries take weights in any order
    plain.weights = plain.weights.contiguous();
    if (plain.bias.defined()) plain.bias = plain.bias.contiguous();
  }
  return pack(*resolution.kernel, {plain});
}

at::Tensor run_kernel(const Decision& decision, const ConvCall& call, const Operands& operands) {
  const Resolution& resolution = decision.resolution;
  const Primitive& primitive = resolution.kernel->primitive;
  std::array<at::Tensor, 2> src;
  std::size_t count = 0;
  if (operands.src.defined()) src[count++] = from_nchw(operands.src, primitive.src);
  if (operands.dst.defined()) src[count++] = from_nchw(operands.dst, primitive.dst);
  const Packed packed = pack(resolution, call, operands.weights);
  return run_prepared(*resolution.kernel, packed, {src.data(), count}, {}, decision.dst);
}

at::Tensor execute(const Decision& decision, const ConvCall& call, const Operands& operands) {
  const Resolution& resolution = decision.resolution;
  const TorchPath inside;  // ATen's algorithms must not come back here
  at::Tensor result = run_kernel(decision, call, operands);
  const Problem& problem = resolution.kernel->problem;
  const Layout layout = result_layout(problem, resolution.kernel->primitive);
  if (is_blocked(layout)) result = to_nchw(result, layout, result_sizes(problem)[1]);
  apply_epilogue(result, resolution.rest, call.bias, {});
  const Layout wanted =
      call.result_format == at::MemoryFormat::Contiguous ? Layout::kNchw : Layout::kNhwc;
  result = to_strided(result, wanted);
  return call.result_sizes.size() == 3 ? result.squeeze(2) : result;
}

}  // namespace

const Choice* find_planned(const PlannedChoices& planned, const ConvProblem& problem) {
  if (planned.empty()) return nullptr;
  auto it = planned.find(to_string(Problem(problem)));
  if (it == planned.end() && !problem.epilogue.empty()) {
    it = planned.find(to_string(with_epilogue(problem, {})));
  }
  return it == planned.end() ? nullptr : &it->second;
}

std::string requested_name(const Choice& argument, const ConvProblem& problem, DeviceKind kind,
                           const ConvSettings& settings) {
  const Direction direction = problem.direction;
  for (const Choice* choice :
       {&argument, &settings.context.of(direction), &settings.flags.of(direction),
        find_planned(settings.planned, problem)}) {
    if (choice == nullptr) continue;
    auto name = requested(*choice, direction, kind, problem.dtype);
    if (name) return *name == kFree ? std::string() : std::move(*name);
  }
  return {};
}

std::optional<at::Tensor> run_convolution(const ConvCall& call, std::string_view choice,
                                          const Algorithms& algorithms) {
  const auto problem = conv_problem(call);
  if (!problem) {
    note_foreign(call, choice);
    return std::nullopt;
  }
  const Operands operands = {with_two_image_dims(call.src), with_two_image_dims(call.weights),
                             with_two_image_dims(call.dst)};
  const at::Tensor& first = operands.src.defined() ? operands.src : operands.dst;
  const auto decision =
      find_or_decide(*problem, request_for(call, operands), first, algorithms, choice);
  if (decision->is_free) {
    if (is_recording()) record_run(decision->spelling, "auto", kFree);
    return std::nullopt;
  }
  const Resolution& resolution = decision->resolution;
  const bool is_asked_for =
      resolution.step == Step::kPlanned || resolution.step == Step::kOtherLayouts;
  if (!is_asked_for) note_fallback(*decision);
  if (is_recording()) {
    record_run(decision->spelling, resolution.name(), to_string(resolution.step));
  }
  return execute(*decision, call, operands);
}

}  // namespace torchalgo

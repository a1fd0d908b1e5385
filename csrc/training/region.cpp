// SPDX-License-Identifier: BSD-3-Clause
#include "training/region.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "all_algorithms.h"
#include "base/error.h"
#include "ir/view.h"
#include "planner/lower.h"
#include "planner/training_graph.h"
#include "provider/cuda_device.h"
#include "provider/tensor_shape.h"

namespace torchalgo {
namespace {

Kernel prepared(const Problem& problem, const Primitive& primitive, const Device& device) {
  const Algorithm* const algorithm = find_algorithm(all_algorithms(), primitive.name);
  TORCHALGO_CHECK(algorithm != nullptr, "TA2701 training: no algorithm has the name '{}'",
                  primitive.name);
  return algorithm->prepare(problem, primitive, device);
}

// The plan has chosen the type of each step, so autocast must not convert in between.
using NoAutocast = c10::impl::ExcludeDispatchKeyGuard;

at::Tensor strided_nchw(const at::Tensor& tensor) {
  return tensor.contiguous(at::MemoryFormat::Contiguous);
}

// Returns a tensor of the same memory that is no view of another: PyTorch refuses changes in place
// of a view that a node of autograd returns. Both have one counter of changes. So a change of a
// result that is saved too is still an error in the backward pass.
at::Tensor without_base(const at::Tensor& tensor) {
  if (!tensor.is_view()) return tensor;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(),
                                                 /*allow_tensor_metadata_change=*/true));
}

}  // namespace

Candidates training_candidates(const Graph& graph, const Algorithms& algorithms,
                               const Device& device, const CandidateOptions& options) {
  Candidates found = find_candidates(graph, algorithms, device, options);
  for (auto& list : found.by_anchor) {
    std::erase_if(list, [](const Candidate& candidate) {
      return is_view(candidate.primitive.name) ||
             std::holds_alternative<ConvChainProblem>(candidate.problem);
    });
  }
  return found;
}

TrainingRegion::TrainingRegion(const Graph& forward, const std::vector<int>& wanted,
                               const std::vector<int>& recomputed, const Candidates& candidates,
                               const Plan& plan, std::vector<NodeParameters> parameters,
                               const Device& device)
    : device_(device),
      where_(torch_device(device)),
      graph_(training_graph(forward, wanted, recomputed)),
      inputs_(static_cast<int>(forward.inputs.size())),
      forward_nodes_(static_cast<int>(forward.nodes.size())),
      forward_outputs_(static_cast<int>(forward.outputs.size())),
      parameters_(std::move(parameters)),
      wanted_(wanted),
      schedule_(lower(graph_, plan, forward_nodes_)) {
  TORCHALGO_CHECK(parameters_.size() == forward.nodes.size() &&
                      candidates.by_anchor.size() == graph_.nodes.size(),
                  "TA2701 training: got parameters of {} nodes and candidates of {}, expected {} "
                  "and {}",
                  parameters_.size(), candidates.by_anchor.size(), forward.nodes.size(),
                  graph_.nodes.size());
  for (const Schedule::Step& step : schedule_.steps) add_step(step, candidates);
  for (int i = 0; i < forward_outputs_; ++i) output_gradients_.push_back(gradient_slot(i));
  find_saved();
  mark_dependent();
  list_gradients();
  // The gradients in flight, workspaces and packed weights take about half as much again.
  if (where_.is_cpu()) kept_.emplace(saved_bytes() + saved_bytes() / 2);
}

// Returns the slot of the gradient of an output, or -1 if the output needs none. The inputs behind
// those of the forward pass are the gradients, in an order of their own.
int TrainingRegion::gradient_slot(int output) const {
  const std::string name = graph_.values[graph_.outputs[output]].name + ".grad";
  for (int i = inputs_; i < static_cast<int>(graph_.inputs.size()); ++i) {
    if (graph_.values[graph_.inputs[i]].name == name) return i;
  }
  return -1;
}

void TrainingRegion::add_step(const Schedule::Step& step, const Candidates& candidates) {
  if (!is_layout_change(step)) {
    // A plan from a file does not have the workspaces.
    const auto& list = candidates.by_anchor[step.covers.front()];
    const bool is_known = std::any_of(list.begin(), list.end(), [&](const Candidate& each) {
      return to_string(each.primitive) == to_string(step.primitive) && each.problem == step.problem;
    });
    TORCHALGO_CHECK(is_known, "TA2701 training: {} is no candidate of {}",
                    to_string(step.primitive), step.layer);
  }
  Step made;
  made.kernel = prepared(*step.problem, step.primitive, device_);
  made.src = step.src;
  made.has_residual = step.residual.has_value();
  if (step.residual) made.src.push_back(*step.residual);
  made.dst = step.dst.at(0);
  made.form = result_form(*step.problem, result_layout(*step.problem, step.primitive), where_);
  if (!is_layout_change(step)) {
    made.node = step.covers.front();
    made.parameters = parameters_of(made.node);
  }
  made.label = fmt::format("{} {}", to_string(step.primitive), step.layer);
  steps_.push_back(std::move(made));
}

// Returns the forward node to which a gradient's node belongs: its name comes before the last dot.
// Returns -1 for a sum of gradients.
int TrainingRegion::owner_of(int node) const {
  const std::string& name = graph_.nodes[node].name;
  const std::string owner = name.substr(0, name.rfind('.'));
  for (int n = 0; n < forward_nodes_; ++n) {
    if (graph_.nodes[n].name == owner) return n;
  }
  return -1;
}

NodeParameters TrainingRegion::parameters_of(int node) const {
  if (node < forward_nodes_) return parameters_[node];
  const Problem& problem = *graph_.nodes[node].problem;
  const int owner = owner_of(node);
  if (owner < 0 || weight_sizes(problem).empty() || graph_.nodes[node].kind == "bwd_filter") {
    return {};
  }
  const auto [weights, bias] = parameters_[owner];
  return {weights, std::holds_alternative<BatchNormProblem>(problem) ? bias : -1};
}

void TrainingRegion::find_saved() {
  const int forward = schedule_.forward_steps;
  std::set<int> saved;
  for (std::size_t s = forward; s < steps_.size(); ++s) {
    for (const int slot : steps_[s].src) {
      const int writer = schedule_.slots[slot].writer;
      if (writer < 0 ? slot < inputs_ : writer < forward) saved.insert(slot);
    }
  }
  saved_.assign(saved.begin(), saved.end());
}

// Marks the slots whose tensors depend on the gradients of the outputs.
void TrainingRegion::mark_dependent() {
  depends_on_loss_.assign(schedule_.slots.size(), false);
  for (const int slot : output_gradients_) {
    if (slot >= 0) depends_on_loss_[slot] = true;
  }
  for (std::size_t s = schedule_.forward_steps; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    depends_on_loss_[step.dst] = std::any_of(step.src.begin(), step.src.end(),
                                             [this](int src) { return depends_on_loss_[src]; });
  }
}

std::vector<SavedTensor> TrainingRegion::saved() const {
  std::vector<SavedTensor> found;
  for (const int slot : saved_) {
    const Schedule::Slot& saved = schedule_.slots[slot];
    if (saved.writer < 0) continue;
    const Kernel& kernel = steps_[saved.writer].kernel;
    const auto bytes = empty_result(kernel.problem, saved.layout, at::kMeta).nbytes();
    found.push_back(
        {graph_.values[saved.value].name, saved.layout, static_cast<std::int64_t>(bytes)});
  }
  return found;
}

std::int64_t TrainingRegion::saved_bytes() const {
  std::int64_t bytes = 0;
  for (const SavedTensor& each : saved()) bytes += each.bytes;
  return bytes;
}

void TrainingRegion::run_step(const Step& step, Tensors& tensors,
                              std::span<const at::Tensor> parameters) const {
  RECORD_FUNCTION(step.label, std::vector<c10::IValue>());
  std::vector<at::Tensor> src;
  src.reserve(step.src.size());
  for (const int slot : step.src) src.push_back(tensors[slot]);
  at::Tensor residual;
  if (step.has_residual) {
    residual = src.back();
    src.pop_back();
  }
  Packed packed;
  if (step.kernel.pack) {
    LayerWeights weights;
    if (step.parameters.weights >= 0) weights.weights = parameters[step.parameters.weights];
    if (step.parameters.bias >= 0) weights.bias = parameters[step.parameters.bias];
    packed = pack(step.kernel, {weights});
  }
  tensors[step.dst] = run_prepared(step.kernel, packed, src, residual, step.form);
}

// Returns false if the step reads gradients and all of them are missing. Then the loss does not
// depend on it. If only some are missing, they become zeros.
bool TrainingRegion::prepare_gradients(const Step& step, Tensors& tensors) const {
  std::vector<int> slots = step.src;
  std::erase_if(slots, [this](int slot) { return !depends_on_loss_[slot]; });
  const auto is_missing = [&](int slot) { return !tensors[slot].defined(); };
  if (!slots.empty() && std::all_of(slots.begin(), slots.end(), is_missing)) return false;
  for (const int slot : slots) {
    if (!is_missing(slot)) continue;
    const Schedule::Slot& missing = schedule_.slots[slot];
    const auto& sizes = graph_.values[missing.value].sizes;
    tensors[slot] = empty_tensor(sizes, DType::kF32, missing.layout, where_).zero_();
  }
  return true;
}

// Drops the tensors that no later step reads, except those in `kept`.
void TrainingRegion::drop_read(std::size_t step, Tensors& tensors,
                               const std::set<int>& kept) const {
  for (const int slot : steps_[step].src) {
    const bool is_over = schedule_.slots[slot].last_use == static_cast<int>(step);
    if (is_over && !kept.contains(slot)) tensors[slot] = at::Tensor();
  }
}

TrainingRegion::Tensors TrainingRegion::run_forward(
    const std::vector<at::Tensor>& inputs, std::span<const at::Tensor> parameters,
    const std::vector<RunningStatistics>& statistics, bool keeps_saved) const {
  Tensors tensors(schedule_.slots.size());
  for (int i = 0; i < inputs_; ++i) tensors[i] = strided_nchw(inputs[i]);
  std::set<int> kept;
  if (keeps_saved) kept.insert(saved_.begin(), saved_.end());
  for (int s = 0; s < schedule_.forward_steps; ++s) {
    const Step& step = steps_[s];
    run_step(step, tensors, parameters);
    for (const RunningStatistics& own : statistics) {
      if (own.node != step.node || !own.mean.defined()) continue;
      const at::Tensor moments = tensors[step.dst];
      const std::int64_t c = own.mean.numel();
      // The two halves of a blocked tensor have pad lanes.
      const at::Tensor mean = moments.select(0, 0).reshape({-1}).narrow(0, 0, c);
      const at::Tensor var = moments.select(0, 1).reshape({-1}).narrow(0, 0, c);
      const auto src = input_sizes(step.kernel.problem)[0];
      const auto count = static_cast<double>(src[0] * src[2] * src[3]);
      own.mean.mul_(1 - own.factor).add_(mean, own.factor);
      own.var.mul_(1 - own.factor).add_(var, own.factor * count / (count - 1));
    }
    drop_read(s, tensors, kept);
  }
  return tensors;
}

std::vector<at::Tensor> TrainingRegion::outputs_of(const Tensors& tensors) const {
  std::vector<at::Tensor> outputs;
  for (int i = 0; i < forward_outputs_; ++i) {
    outputs.push_back(without_base(tensors[schedule_.outputs[i]]));
  }
  return outputs;
}

void TrainingRegion::list_gradients() {
  const std::size_t first = graph_.outputs.size() - wanted_.size();
  const auto add = [this](std::size_t output, int place, int part) {
    gradients_.push_back({schedule_.outputs[output], place, part});
  };
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    const auto place = std::find(graph_.inputs.begin(), graph_.inputs.end(), wanted_[i]);
    add(first + i, static_cast<int>(place - graph_.inputs.begin()), -1);
  }
  for (std::size_t o = forward_outputs_; o < first; ++o) {
    const int producer = graph_.values[graph_.outputs[o]].producer;
    const auto [weights, bias] = parameters_[owner_of(producer)];
    const std::string& kind = graph_.nodes[producer].kind;
    if (kind == "bwd_filter") add(o, inputs_ + weights, -1);
    if (kind == "bwd_bias" || kind == "bwd_sums") add(o, inputs_ + bias, 0);
    if (kind == "bwd_sums") add(o, inputs_ + weights, 1);
  }
}

std::vector<at::Tensor> TrainingRegion::kept_parameters(
    std::span<const at::Tensor> parameters) const {
  std::vector<at::Tensor> kept(parameters.size());
  for (const NodeParameters& own : parameters_) {
    if (own.weights >= 0) kept[own.weights] = parameters[own.weights];
  }
  for (std::size_t s = schedule_.forward_steps; s < steps_.size(); ++s) {
    const int bias = steps_[s].parameters.bias;
    if (bias >= 0 && !kept[bias].defined()) kept[bias] = parameters[bias].detach().clone();
  }
  return kept;
}

std::vector<bool> TrainingRegion::steps_for(const std::vector<bool>& needs) const {
  std::vector<bool> is_needed(schedule_.slots.size(), false), runs(steps_.size(), false);
  for (const Gradient& gradient : gradients_) {
    if (needs[gradient.place]) is_needed[gradient.slot] = true;
  }
  for (std::size_t s = steps_.size(); s-- > static_cast<std::size_t>(schedule_.forward_steps);) {
    if (!is_needed[steps_[s].dst]) continue;
    runs[s] = true;
    for (const int src : steps_[s].src) is_needed[src] = true;
  }
  return runs;
}

std::vector<at::Tensor> TrainingRegion::run_backward(Tensors tensors,
                                                     std::span<const at::Tensor> parameters,
                                                     const std::vector<bool>& needs) const {
  const std::vector<bool> runs = steps_for(needs);
  for (std::size_t s = schedule_.forward_steps; s < steps_.size(); ++s) {
    if (!runs[s]) continue;
    if (prepare_gradients(steps_[s], tensors)) run_step(steps_[s], tensors, parameters);
    drop_read(s, tensors, {});
  }
  std::vector<at::Tensor> gradients(needs.size());
  for (const auto& [slot, place, part] : gradients_) {
    if (!needs[place]) continue;
    const at::Tensor& found = tensors[slot];
    if (!found.defined()) continue;  // as in PyTorch, where no gradient is not zero
    const at::Tensor gradient = part < 0 ? found : found.select(0, part).reshape({-1}).contiguous();
    // A parameter may belong to several layers.
    gradients[place] = gradients[place].defined() ? gradients[place] + gradient : gradient;
  }
  return gradients;
}

// Returns for each slot whether it depends on an input or a parameter that requires a gradient.
// `tensors` are the inputs, and then the parameters.
std::vector<bool> TrainingRegion::needing_gradient(std::span<const at::Tensor> tensors) const {
  std::vector<bool> needs(schedule_.slots.size(), false);
  for (int i = 0; i < inputs_; ++i) needs[i] = tensors[i].requires_grad();
  for (int s = 0; s < schedule_.forward_steps; ++s) {
    const Step& step = steps_[s];
    bool is_needing = false;
    for (const int src : step.src) is_needing = is_needing || needs[src];
    for (const int place : {step.parameters.weights, step.parameters.bias})
      is_needing = is_needing || (place >= 0 && tensors[inputs_ + place].requires_grad());
    needs[step.dst] = is_needing;
  }
  return needs;
}

struct RegionFunction : public torch::autograd::Function<RegionFunction> {
  using Context = torch::autograd::AutogradContext;

  struct Held : torch::CustomClassHolder {
    std::shared_ptr<TrainingRegion> region;
    std::vector<std::vector<std::int64_t>> strides;  // of the saved tensors
  };

  // A hook of saved tensors, such as save_on_cpu, may return the values in another order in memory.
  static at::Tensor with_strides(const at::Tensor& unpacked, at::IntArrayRef strides) {
    if (unpacked.strides() == strides) return unpacked;
    return at::empty_strided(unpacked.sizes(), strides, unpacked.options()).copy_(unpacked);
  }

  static torch::autograd::variable_list forward(Context* ctx,
                                                const std::shared_ptr<TrainingRegion>& region,
                                                at::TensorList tensors,
                                                const std::vector<RunningStatistics>& statistics) {
    const std::vector<at::Tensor> all = tensors.vec();
    const std::vector<at::Tensor> inputs(all.begin(), all.begin() + region->inputs_);
    const std::span<const at::Tensor> parameters =
        std::span(all).subspan(static_cast<std::size_t>(region->inputs_));
    const auto found = region->run_forward(inputs, parameters, statistics, /*keeps_saved=*/true);
    std::vector<at::Tensor> saved = region->kept_parameters(parameters);
    const auto held = c10::make_intrusive<Held>();
    held->region = region;
    for (const int slot : region->saved_) {
      saved.push_back(found[slot]);
      held->strides.push_back(found[slot].strides().vec());
    }
    ctx->save_for_backward(std::move(saved));
    ctx->set_materialize_grads(false);
    ctx->saved_data["region"] = c10::IValue::make_capsule(held);
    const std::vector<at::Tensor> results = region->outputs_of(found);
    const std::vector<bool> needs = region->needing_gradient(all);
    std::vector<at::Tensor> fixed;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!needs[region->schedule_.outputs[i]]) fixed.push_back(results[i]);
    }
    ctx->mark_non_differentiable(fixed);
    return results;
  }

  static torch::autograd::variable_list backward(Context* ctx,
                                                 torch::autograd::variable_list gradients) {
    TORCHALGO_CHECK(!at::GradMode::is_enabled(),
                    "TA2702 training: a gradient of a gradient was asked for (create_graph=True); "
                    "a model of optimize_training has first derivatives only. Use the model "
                    "as it was given for this loss");
    const auto held =
        c10::static_intrusive_pointer_cast<Held>(ctx->saved_data.at("region").toCapsule());
    const TrainingRegion& region = *held->region;
    const c10::OptionalDeviceGuard current(region.gpu());
    const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
    const std::vector<at::Tensor> saved = ctx->get_saved_variables();
    const std::size_t parameters = saved.size() - region.saved_.size();
    TrainingRegion::Tensors tensors(region.schedule_.slots.size());
    for (std::size_t i = 0; i < region.saved_.size(); ++i) {
      tensors[region.saved_[i]] = with_strides(saved[parameters + i], held->strides[i]);
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const int slot = region.output_gradients_[i];
      if (slot < 0 || !gradients[i].defined()) continue;
      // A value may be several outputs.
      at::Tensor& sum = tensors[slot];
      sum = sum.defined() ? sum + strided_nchw(gradients[i]) : strided_nchw(gradients[i]);
    }
    // Position 0 is the region itself.
    std::vector<bool> needs;
    for (std::size_t i = 0; i < region.inputs_ + parameters; ++i) {
      needs.push_back(ctx->needs_input_grad(i));
    }
    std::vector<at::Tensor> found =
        region.run_backward(std::move(tensors), std::span(saved).first(parameters), needs);
    torch::autograd::variable_list results = {at::Tensor()};
    results.insert(results.end(), found.begin(), found.end());
    results.emplace_back();
    return results;
  }
};

std::vector<at::Tensor> TrainingRegion::run(const std::shared_ptr<TrainingRegion>& region,
                                            std::vector<at::Tensor> inputs,
                                            const std::vector<at::Tensor>& parameters,
                                            const std::vector<RunningStatistics>& statistics) {
  TORCHALGO_CHECK(inputs.size() == static_cast<std::size_t>(region->inputs_),
                  "TA2703 training: got {} inputs, expected {}", inputs.size(), region->inputs_);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = region->graph_.values[region->graph_.inputs[i]];
    TORCHALGO_CHECK(
        inputs[i].device() == region->where_ && inputs[i].scalar_type() == at::kFloat &&
            inputs[i].sizes() == at::IntArrayRef(value.sizes),
        "TA2703 training: input {} is {} of sizes [{}] on {}, expected float of [{}] on {}", i,
        at::toString(inputs[i].scalar_type()), fmt::join(inputs[i].sizes(), ", "),
        inputs[i].device().str(), fmt::join(value.sizes, ", "), region->where_.str());
  }
  const c10::OptionalDeviceGuard current(region->gpu());
  const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
  const auto requires_grad = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
  const bool is_recorded = at::GradMode::is_enabled() &&
                           (std::any_of(inputs.begin(), inputs.end(), requires_grad) ||
                            std::any_of(parameters.begin(), parameters.end(), requires_grad));
  if (!is_recorded) {
    const at::NoGradGuard no_grad;
    return region->outputs_of(region->run_forward(inputs, parameters, statistics, false));
  }
  inputs.insert(inputs.end(), parameters.begin(), parameters.end());
  return RegionFunction::apply(region, at::TensorList(inputs), statistics);
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "runner/plan_object.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/fork_mutex.h"
#include "provider/memory.h"

namespace torchalgo {
namespace {

// Adds all tensors of a result. Returns false if it holds anything else.
bool add_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
    return tensors.back().defined();
  }
  const auto add = [&](const c10::IValue& each) { return add_tensors(each, tensors); };
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return std::all_of(elements.begin(), elements.end(), add);
  }
  if (!value.isList()) return false;
  const c10::ArrayRef<c10::IValue> elements = value.toListRef();
  return std::all_of(elements.begin(), elements.end(), add);
}

// Sparse tensors have no storage to compare.
bool is_alias(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && a.has_storage() && b.has_storage() && a.is_alias_of(b);
}

// Returns true if a constant, or a tensor in a constant list, is memory of the tensor.
bool has_alias(const c10::IValue& constant, const at::Tensor& tensor) {
  if (constant.isTensor()) return is_alias(constant.toTensor(), tensor);
  if (!constant.isTensorList() && !constant.isOptionalTensorList()) return false;
  const c10::ArrayRef<c10::IValue> elements = constant.toListRef();
  return std::any_of(elements.begin(), elements.end(),
                     [&](const c10::IValue& each) { return has_alias(each, tensor); });
}

// Returns the result's tensors, each in memory of its own.
std::vector<at::Tensor> new_tensors(const c10::IValue& result, const Program& program,
                                    at::TensorList inputs) {
  std::vector<at::Tensor> tensors;
  TORCHALGO_ASSERT(add_tensors(result, tensors));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto is_same = [&](const at::Tensor& other) { return is_alias(other, tensors[i]); };
    const auto has_same = [&](const c10::IValue& constant) {
      return has_alias(constant, tensors[i]);
    };
    const auto end = tensors.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::any_of(inputs.begin(), inputs.end(), is_same) ||
        std::any_of(tensors.begin(), end, is_same) ||
        std::any_of(program.constants.begin(), program.constants.end(), has_same))
      tensors[i] = tensors[i].clone();
  }
  return tensors;
}

bool has_sizes(const std::vector<at::Tensor>& inputs, const std::vector<PlannedInput>& planned) {
  return std::equal(inputs.begin(), inputs.end(), planned.begin(), planned.end(),
                    [](const at::Tensor& input, const PlannedInput& expected) {
                      return input.sizes() == at::IntArrayRef(expected.sizes);
                    });
}

// Returns true if the sizes are within the limits. `dims` may be empty: all sizes are.
bool fits(const std::vector<at::Tensor>& inputs, const std::vector<std::vector<SizeLimits>>& dims) {
  if (dims.empty()) return true;
  if (dims.size() != inputs.size()) return false;
  std::map<std::int64_t, std::int64_t> values;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (static_cast<std::size_t>(inputs[i].dim()) != dims[i].size()) return false;
    for (std::size_t k = 0; k < dims[i].size(); ++k) {
      const SizeLimits& limits = dims[i][k];
      const std::int64_t size = inputs[i].size(static_cast<std::int64_t>(k));
      if (size < limits.least || (limits.most >= 0 && size > limits.most)) return false;
      if (limits.variable >= 0 && values.emplace(limits.variable, size).first->second != size)
        return false;
    }
  }
  return true;
}

double distance(const std::vector<at::Tensor>& inputs, const std::vector<PlannedInput>& planned) {
  double sum = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& sizes = planned[i].sizes;
    if (static_cast<std::size_t>(inputs[i].dim()) != sizes.size())
      return std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < sizes.size(); ++k) {
      const double size = std::max<std::int64_t>(inputs[i].size(static_cast<std::int64_t>(k)), 1);
      sum += std::abs(std::log(size / std::max<std::int64_t>(sizes[k], 1)));
    }
  }
  return sum;
}

std::string text_of(const std::vector<at::Tensor>& inputs) {
  std::vector<std::string> texts;
  for (const at::Tensor& input : inputs)
    texts.push_back(fmt::format("[{}]", fmt::join(input.sizes(), ", ")));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string text_of(const std::vector<PlannedInput>& planned) {
  std::vector<std::string> texts;
  for (const PlannedInput& input : planned)
    texts.push_back(fmt::format("[{}]", fmt::join(input.sizes, ", ")));
  return fmt::format("{}", fmt::join(texts, ", "));
}

// Returns a constant with its tensors on the meta device. Tensors without dimensions keep their
// values, because sizes may be computed with them.
c10::IValue constant_on_meta(const c10::IValue& constant) {
  if (constant.isTensor()) {
    const at::Tensor& tensor = constant.toTensor();
    return tensor.defined() && tensor.dim() > 0 ? on_meta(tensor) : tensor;
  }
  if (!constant.isTensorList() && !constant.isOptionalTensorList()) return constant;
  c10::impl::GenericList moved(constant.type()->expectRef<c10::ListType>().getElementType());
  for (const c10::IValue& each : constant.toListRef()) moved.push_back(constant_on_meta(each));
  return moved;
}

// A plan's ops have the types for which it was made, so autocast must not convert in between.
using NoAutocast = c10::impl::ExcludeDispatchKeyGuard;

// Removes the dispatch key by which torch's fake tensors send all ops to the meta device. Ops on
// numbers, which compute sizes, must run on the CPU.
class OnMeta {
 public:
  OnMeta() : OnMeta(c10::impl::tls_local_dispatch_key_set()) {}

 private:
  explicit OnMeta(const c10::impl::LocalDispatchKeySet& keys)
      : guard_(keys.included_.remove_backend(c10::BackendComponent::MetaBit),
               keys.excluded_ | c10::autocast_dispatch_keyset) {}
  c10::impl::ForceDispatchKeyGuard guard_;
};

struct Handles {
  ForkMutex mutex{ForkMutex::Level::kOuter};
  std::unordered_map<std::int64_t, c10::weak_intrusive_ptr<PlanObject>> objects;
  std::random_device random;
};

Handles& handles() {
  static Handles* const all = new Handles;  // objects may be used while the process ends
  return *all;
}

}  // namespace

PlanObject::PlanObject(std::vector<PlanPart> parts, std::shared_ptr<const WeightWatch> weights)
    : parts_(std::move(parts)), weights_(std::move(weights)) {
  TORCHALGO_CHECK(have_equal_forms(parts_),
                  "TA2003 save: the plans take or return different numbers of tensors; save each "
                  "module of .by_shape alone");
}

bool have_equal_forms(const std::vector<PlanPart>& parts) {
  return !parts.empty() && std::all_of(parts.begin(), parts.end(), [&](const PlanPart& part) {
    return part.runner != nullptr &&
           part.runner->planned().size() == parts[0].runner->planned().size() &&
           part.results.size() == parts[0].results.size();
  });
}

const PlanPart& PlanObject::part_for(const std::vector<at::Tensor>& inputs) const {
  const auto& first = parts_[0].runner->planned();
  TORCHALGO_CHECK(inputs.size() == first.size(),
                  "TA4303 torchalgo: got {} tensors, the plan takes {}: {}", inputs.size(),
                  first.size(), text_of(first));
  const PlanPart* best = nullptr;
  double least = 0;
  for (const PlanPart& part : parts_) {
    if (has_sizes(inputs, part.runner->planned())) return part;
    if (!fits(inputs, part.dims)) continue;
    const double far = distance(inputs, part.runner->planned());
    // Equal distances must not depend on rounding.
    if (best == nullptr || far < least - 1e-9) best = &part, least = far;
  }
  TORCHALGO_CHECK(best != nullptr,
                  "TA4303 torchalgo: inputs are {}, and no plan is right for these sizes; it was "
                  "made for {}. Optimize the model for these shapes as well (docs/shapes.md)",
                  text_of(inputs), text_of(first));
  return *best;
}

std::vector<at::Tensor> PlanObject::run(at::TensorList inputs) const {
  const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
  std::vector<at::Tensor> tensors = inputs.vec();
  const GraphRunner& runner = *part_for(tensors).runner;
  std::optional<c10::IValue> result = runner.run(tensors);
  if (!result) result = runner.run_anywhere(std::move(tensors), runner.program().constants);
  return new_tensors(*result, runner.program(), inputs);
}

std::vector<at::Tensor> PlanObject::run_on_meta(at::TensorList inputs) const {
  const OnMeta on_meta_device;
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& input : inputs) tensors.push_back(on_meta(input));
  const PlanPart& part = part_for(tensors);
  const Program& program = part.runner->program();
  const bool is_contiguous =
      std::all_of(tensors.begin(), tensors.end(),
                  [](const at::Tensor& tensor) { return tensor.is_contiguous(); });
  if (is_contiguous && has_sizes(tensors, part.runner->planned())) {
    std::vector<at::Tensor> results;
    for (const PlannedResult& result : part.results) {
      results.push_back(at::empty_strided(result.sizes, result.strides,
                                          at::TensorOptions(result.dtype).device(at::kMeta)));
    }
    return results;
  }
  std::vector<c10::IValue> constants;
  for (const c10::IValue& constant : program.constants)
    constants.push_back(constant_on_meta(constant));
  return new_tensors(part.runner->run_anywhere(tensors, constants), program, tensors);
}

void PlanObject::check_weights() const {
  const auto change = weights_ == nullptr ? std::nullopt : weights_->first_change();
  TORCHALGO_CHECK(!change, "TA1404 torchalgo: {}: call .refresh() on the optimized module",
                  change->text);
}

void PlanObject::release_resources() {
  Handles& all = handles();
  decltype(all.objects)::node_type entry;  // destroyed outside of the lock
  {
    const std::lock_guard lock(all.mutex);
    entry = all.objects.extract(handle_);
  }
  parts_.clear();
  weights_.reset();
}

std::int64_t PlanObject::handle() {
  Handles& all = handles();
  const std::lock_guard lock(all.mutex);
  while (handle_ == 0) {
    const std::uint64_t bits = (std::uint64_t{all.random()} << 32) | all.random();
    const auto handle = static_cast<std::int64_t>(bits >> 1);
    if (handle == 0 || all.objects.contains(handle)) continue;
    handle_ = handle;
    all.objects.emplace(handle, c10::weak_intrusive_ptr<PlanObject>(
                                    c10::intrusive_ptr<PlanObject>::reclaim_copy(this)));
  }
  return handle_;
}

c10::intrusive_ptr<PlanObject> PlanObject::find(std::int64_t handle) {
  Handles& all = handles();
  const std::lock_guard lock(all.mutex);
  const auto found = all.objects.find(handle);
  auto object = found == all.objects.end() ? nullptr : found->second.lock();
  TORCHALGO_CHECK(object != nullptr,
                  "TA4303 torchalgo: the plan of this compiled code does not exist any more: keep "
                  "the optimized module, or compile again");
  return object;
}

namespace {

c10::IValue result_for(const std::vector<at::Tensor>& zeros, const GraphRunner& runner) {
  const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
  try {
    return runner.run_anywhere(zeros, runner.program().constants);
  } catch (const c10::Error& problem) {
    throw Error(
        fmt::format("TA2003 save: the model fails for inputs of zeros: {}; save it as a .pt "
                    "file",
                    problem.what_without_backtrace()));
  }
}

}  // namespace

PlanPart make_plan_part(const torch::jit::Module& module, std::vector<PlannedInput> planned,
                        std::vector<std::vector<SizeLimits>> dims, at::Device device) {
  std::vector<at::Tensor> zeros;
  for (const PlannedInput& input : planned)
    zeros.push_back(at::zeros(input.sizes, at::TensorOptions(input.dtype).device(device)));
  PlanPart part{
      GraphRunner::make(read_program(module), std::move(planned), false), std::move(dims), {}};
  TORCHALGO_CHECK(part.runner != nullptr,
                  "TA2003 save: the module branches or loops, so it cannot become one op: save it "
                  "as a .pt file");
  TORCHALGO_CHECK(zeros.size() == static_cast<std::size_t>(part.runner->program().inputs),
                  "TA2003 save: the plan has {} inputs, its module takes {}: optimize the model "
                  "again",
                  zeros.size(), part.runner->program().inputs);
  const at::NoGradGuard no_grad;
  const Program& program = part.runner->program();
  const c10::IValue result = result_for(zeros, *part.runner);
  std::vector<at::Tensor> tensors;
  TORCHALGO_CHECK(add_tensors(result, tensors),
                  "TA2003 save: the model returns {}, expected tensors, or tuples and lists of "
                  "tensors: save it as a .pt file",
                  result.type()->annotation_str());
  for (const at::Tensor& tensor : new_tensors(result, program, zeros)) {
    part.results.push_back({tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()});
  }
  return part;
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
// How the fake runs a plan.
#include <cmath>

#include "cudnn_algo/fake_state.h"

namespace torchalgo::cudnn::fake::detail {
namespace {

const Object& graph_of(const Object& plan) {
  const ObjectPtr configuration = part_of(plan, AttributeName::kPlanEngineConfig);
  const ObjectPtr engine = part_of(*configuration, AttributeName::kEngineConfigEngine);
  return *part_of(*engine, AttributeName::kEngineOperationGraph);
}

// Values of the tensors of one execution; virtual ones live here only.
class Memory {
 public:
  explicit Memory(const std::map<std::int64_t, void*>& pointers) : pointers_(pointers) {}

  bool has(const Object& tensor) const {
    const std::int64_t id = id_of(tensor);
    if (value_of<bool>(tensor, AttributeName::kTensorIsVirtual)) return true;
    const auto at = pointers_.find(id);
    const auto alignment = static_cast<std::uintptr_t>(place_of(tensor).alignment);
    return at != pointers_.end() && at->second != nullptr &&
           reinterpret_cast<std::uintptr_t>(at->second) % alignment == 0;
  }
  std::vector<double> load(const Object& tensor) const {
    if (value_of<bool>(tensor, AttributeName::kTensorIsVirtual)) return virtual_.at(id_of(tensor));
    return read(place_of(tensor), pointers_.at(id_of(tensor)));
  }
  void store(const Object& tensor, const std::vector<double>& values) {
    if (value_of<bool>(tensor, AttributeName::kTensorIsVirtual)) {
      virtual_[id_of(tensor)] = values;
    } else {
      write(place_of(tensor), values, pointers_.at(id_of(tensor)));
    }
  }

 private:
  static std::int64_t id_of(const Object& tensor) {
    return value_of<std::int64_t>(tensor, AttributeName::kTensorUniqueId);
  }
  const std::map<std::int64_t, void*>& pointers_;
  std::map<std::int64_t, std::vector<double>> virtual_;
};

// b of the sizes of x, each dimension of b as long as x's or 1.
double broadcast(const std::vector<double>& b, const std::vector<std::int64_t>& b_sizes,
                 const std::vector<std::int64_t>& x_sizes, std::int64_t index) {
  std::int64_t at = 0, step = 1;
  for (std::size_t d = x_sizes.size(); d-- > 0;) {
    const std::int64_t position = index % x_sizes[d];
    index /= x_sizes[d];
    if (b_sizes[d] > 1) at += position * step;
    step *= b_sizes[d];
  }
  return b[static_cast<std::size_t>(at)];
}

double activated(PointwiseMode mode, double x) {
  if (mode == PointwiseMode::kSwishForward) return x / (1 + std::exp(-x));
  if (mode == PointwiseMode::kGeluForward) return x * (1 + std::erf(x / std::sqrt(2.0))) / 2;
  return x < 0 ? 0 : x;
}

void run_pointwise(Memory& memory, const Object& operation) {
  const ObjectPtr x = part_of(operation, AttributeName::kOperationPointwiseX);
  const ObjectPtr b = part_of(operation, AttributeName::kOperationPointwiseB);
  const ObjectPtr mode = part_of(operation, AttributeName::kOperationPointwiseDescriptor);
  std::vector<double> values = memory.load(*x);
  const auto kind = value_of<PointwiseMode>(*mode, AttributeName::kPointwiseMode);
  if (kind == PointwiseMode::kAdd) {
    const std::vector<double> added = memory.load(*b);
    const Place place = place_of(*x), place_b = place_of(*b);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] += broadcast(added, place_b.sizes, place.sizes, static_cast<std::int64_t>(i));
    }
  } else {
    for (double& value : values) value = activated(kind, value);
  }
  memory.store(*part_of(operation, AttributeName::kOperationPointwiseY), values);
}

void run_convolution(Memory& memory, const Object& operation) {
  const ConvolutionNames names = names_of(operation.type);
  const Object& x = *part_of(operation, names.x);
  const Object& w = *part_of(operation, names.w);
  const Object& y = *part_of(operation, names.y);
  const Geometry geometry = geometry_of(operation);
  if (names.role == Role::kForward) {
    memory.store(y, convolve(names.role, geometry, memory.load(x), memory.load(w)));
  } else if (names.role == Role::kBackwardData) {
    memory.store(x, convolve(names.role, geometry, memory.load(y), memory.load(w)));
  } else {
    memory.store(w, convolve(names.role, geometry, memory.load(x), memory.load(y)));
  }
}

bool has_all_tensors(const Object& graph, const std::map<std::int64_t, void*>& pointers) {
  const Memory memory(pointers);
  for (const ObjectPtr& operation : graph.values.at(AttributeName::kOperationGraphOps).parts) {
    for (const auto& [name, value] : operation->values) {
      for (const ObjectPtr& part : value.parts) {
        if (part->type == DescriptorType::kTensor && !memory.has(*part)) return false;
      }
    }
  }
  return true;
}

void run_operations(const Object& graph, const std::map<std::int64_t, void*>& pointers) {
  Memory memory(pointers);
  for (const ObjectPtr& operation : graph.values.at(AttributeName::kOperationGraphOps).parts) {
    operation->type == DescriptorType::kOperationPointwise ? run_pointwise(memory, *operation)
                                                           : run_convolution(memory, *operation);
  }
}

}  // namespace

Status execute_plan(State& state, Handle handle, Descriptor plan_descriptor,
                    Descriptor pack_descriptor) {
  ObjectPtr plan, pack;
  {
    const std::lock_guard lock(state.mutex);
    if (!state.accepts(handle)) return kBadParamNullPointer;
    plan = state.find(plan_descriptor);
    pack = state.find(pack_descriptor);
    if (plan == nullptr || pack == nullptr) return state.fail(kBadParam, "execute: no descriptor");
    if (!plan->is_finalized || !pack->is_finalized) return state.fail(2004, "execute");
    if (value_of<Handle>(*plan, AttributeName::kPlanHandle) != handle) {
      return state.fail(kBadParam, "execute: the plan was made for another handle");
    }
  }
  const auto ids = values_of<std::int64_t>(*pack, AttributeName::kVariantPackUniqueIds);
  const auto data = values_of<void*>(*pack, AttributeName::kVariantPackDataPointers);
  std::map<std::int64_t, void*> pointers;
  for (std::size_t i = 0; i < ids.size(); ++i) pointers[ids[i]] = data[i];
  void* const workspace = value_of<void*>(*pack, AttributeName::kVariantPackWorkspace);
  if (plan->workspace > 0 && workspace == nullptr) {
    const std::lock_guard lock(state.mutex);
    return state.fail(kBadParamNullPointer, "execute: no workspace");
  }
  if (!has_all_tensors(graph_of(*plan), pointers)) {
    const std::lock_guard lock(state.mutex);
    return state.fail(2003, "execute: a tensor is missing or misaligned");
  }
  return state.enqueue(handle, [plan, pointers, workspace] {
    poison(workspace, plan->workspace);
    run_operations(graph_of(*plan), pointers);
    poison(workspace, plan->workspace);
  });
}

}  // namespace torchalgo::cudnn::fake::detail

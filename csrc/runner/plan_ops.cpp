// SPDX-License-Identifier: BSD-3-Clause
// The op that runs a plan object, and its class.
#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

#include "ops/planned_op_checks.h"
#include "ops/script_classes.h"
#include "runner/plan_object.h"

namespace torchalgo {
namespace {

using PlanPtr = c10::intrusive_ptr<PlanObject>;

std::vector<at::Tensor> run_plan(at::TensorList inputs, const PlanPtr& plan) {
  return plan->run(inputs);
}

std::vector<at::Tensor> run_plan_on_meta(at::TensorList inputs, const PlanPtr& plan) {
  return plan->run_on_meta(inputs);
}

// Code that a compiler made calls this, so nothing else has compared the weights.
std::vector<at::Tensor> run_held_plan(at::TensorList inputs, std::int64_t handle) {
  const PlanPtr plan = PlanObject::find(handle);
  plan->check_weights();
  return plan->run(inputs);
}

std::vector<at::Tensor> run_held_plan_on_meta(at::TensorList inputs, std::int64_t handle) {
  return PlanObject::find(handle)->run_on_meta(inputs);
}

// The names of the class and of run_plan are on disk.
TORCH_LIBRARY_FRAGMENT(torchalgo, m) {
  auto added = m.class_<PlanObject>("Plan");
  add_tracing_methods(added);
  added.def("handle", [](const PlanPtr& plan) { return plan->handle(); })
      .def_pickle([](const PlanPtr& plan) { return plan->state(); },
                  [](c10::IValue state) { return PlanObject::from_state(state); });
  m.def("run_plan(Tensor[] inputs, __torch__.torch.classes.torchalgo.Plan plan) -> Tensor[]");
  // Takes the plan's handle instead of the plan, because code of Inductor cannot contain objects.
  m.def("run_held_plan(Tensor[] inputs, int handle) -> Tensor[]");
}

void add_kernels(torch::Library& m) {
  m.impl("run_plan", run_plan);
  m.impl("run_held_plan", run_held_plan);
}

template <auto kKernel>
void add_boxed_kernels(torch::Library& m) {
  for (const char* op : {"run_plan", "run_held_plan"})
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<kKernel>());
}

TORCH_LIBRARY_IMPL(torchalgo, CPU, m) { add_kernels(m); }
TORCH_LIBRARY_IMPL(torchalgo, CUDA, m) { add_kernels(m); }
TORCH_LIBRARY_IMPL(torchalgo, Meta, m) {
  m.impl("run_plan", run_plan_on_meta);
  m.impl("run_held_plan", run_held_plan_on_meta);
}
TORCH_LIBRARY_IMPL(torchalgo, AutogradCPU, m) { add_boxed_kernels<&run_without_derivative>(m); }
TORCH_LIBRARY_IMPL(torchalgo, AutogradCUDA, m) { add_boxed_kernels<&run_without_derivative>(m); }
TORCH_LIBRARY_IMPL(torchalgo, CompositeExplicitAutograd, m) {
  add_boxed_kernels<&refuse_backend>(m);
}

}  // namespace
}  // namespace torchalgo

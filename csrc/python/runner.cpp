// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "python/module.h"
#include "runner/graph_runner.h"
#include "runner/plan_object.h"

namespace py = pybind11;

namespace torchalgo {
namespace {

py::object to_object(c10::IValue&& value) { return torch::jit::toPyObject(std::move(value)); }
py::object to_object(OpTimes&& times) { return py::cast(std::move(times)); }

// Calls `run_inputs`, a member of GraphRunner. NotImplemented: the module itself must run.
template <auto run_inputs>
py::object run(const GraphRunner& runner, const py::args& args) {
  const auto not_here = [] { return py::reinterpret_borrow<py::object>(Py_NotImplemented); };
  std::vector<at::Tensor> inputs;
  inputs.reserve(args.size());
  for (const py::handle& argument : args) {
    // A subclass of Tensor may have its own way with calls.
    if (!THPVariable_CheckExact(argument.ptr())) return not_here();
    inputs.push_back(THPVariable_Unpack(argument.ptr()));
  }
  decltype((runner.*run_inputs)(inputs)) result;
  try {
    // The end of C++'s last reference to a tensor of Python takes the GIL. So `inputs` stay here.
    const ReleasedGil no_gil;
    result = (runner.*run_inputs)(inputs);
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    return not_here();  // the module tells what is wrong, and where in its code
  }
  return result ? to_object(std::move(*result)) : not_here();
}

using Inputs = std::vector<std::pair<std::vector<std::int64_t>, at::ScalarType>>;

std::vector<PlannedInput> planned_inputs(const Inputs& inputs, const std::string& device) {
  std::vector<PlannedInput> planned;
  for (const auto& [sizes, dtype] : inputs) planned.push_back({sizes, dtype, at::Device(device)});
  return planned;
}

std::shared_ptr<GraphRunner> make(const torch::jit::Module& module, const Inputs& inputs,
                                  const std::string& device) {
  return std::const_pointer_cast<GraphRunner>(
      GraphRunner::make(read_program(module), planned_inputs(inputs, device)));
}

// A module with what its plan says: sizes and types of the inputs, and per input and dimension the
// variable, the least and the greatest size for which it is right (as_numbers in shapes.py).
using ModulePlan =
    std::tuple<torch::jit::Module, Inputs, std::vector<std::vector<std::array<std::int64_t, 3>>>>;

py::object make_plan_object(const std::vector<ModulePlan>& plans, const std::string& device,
                            std::shared_ptr<WeightWatch> weights) {
  std::vector<PlanPart> parts;
  for (const auto& [module, inputs, numbers] : plans) {
    std::vector<std::vector<SizeLimits>> dims;
    for (const auto& input : numbers) {
      auto& limits = dims.emplace_back();
      for (const auto& [variable, least, most] : input) limits.push_back({variable, least, most});
    }
    const py::gil_scoped_release no_gil;  // the module runs
    parts.push_back(make_plan_part(module, planned_inputs(inputs, device), std::move(dims),
                                   at::Device(device)));
  }
  return torch::jit::toPyObject(
      c10::IValue(c10::make_intrusive<PlanObject>(std::move(parts), std::move(weights))));
}

std::vector<torch::jit::Module> modules_of(const py::object& plan,
                                           const std::vector<std::string>& names) {
  const c10::IValue object =
      torch::jit::toIValue(plan, c10::getCustomClassType<c10::intrusive_ptr<PlanObject>>());
  std::vector<torch::jit::Module> modules;
  for (const PlanPart& part : object.toCustomClass<PlanObject>()->parts())
    modules.push_back(module_of(part.runner->program(), names));
  return modules;
}

}  // namespace

void bind_runner(py::module_& m) {
  py::class_<GraphRunner, std::shared_ptr<GraphRunner>>(m, "GraphRunner")
      .def_static("make", &make, py::arg("module"), py::arg("inputs"), py::arg("device") = "cpu")
      .def("run", &run<&GraphRunner::run>)
      .def("run_planned", &run<&GraphRunner::run_planned>)
      .def("time_left_ops", &run<&GraphRunner::time_left_ops>);
  m.def("make_plan_object", &make_plan_object, py::arg("plans"), py::arg("device"),
        py::arg("weights") = nullptr);
  m.def("modules_of_plan_object", &modules_of, py::arg("plan"), py::arg("names"));
}

}  // namespace torchalgo

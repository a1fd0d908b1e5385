// SPDX-License-Identifier: BSD-3-Clause
#include "ir/schedule.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/problem.h"
#include "planner/lower.h"
#include "planner/memory_need.h"
#include "provider/cpu_device.h"
#include "python/module.h"
#include "write/content_hash.h"
#include "write/packed_step.h"
#include "write/problem_code.h"

namespace py = pybind11;

namespace torchalgo {
namespace {

// `constants` are weights and bias of each layer in turn, contiguous tensors of floats.
py::tuple add_step(ConstantsFile& file, const std::string& problem, const Primitive& primitive,
                   const Device& device, const std::vector<std::optional<at::Tensor>>& constants) {
  const auto floats_of = [](const std::optional<at::Tensor>& tensor) {
    return tensor ? tensor->const_data_ptr<float>() : nullptr;
  };
  std::vector<cpu::LayerPointers> layers;
  for (std::size_t i = 0; i + 1 < constants.size(); i += 2)
    layers.push_back({floats_of(constants[i]), floats_of(constants[i + 1])});
  const PackedStep step = pack_step(parse_problem(problem), primitive, device, layers, file);
  return py::make_tuple(std::string(step.file), step.is_family, step.primitive,
                        step.workspace_bytes);
}

}  // namespace

void bind_schedule(py::module_& m) {
  using Slot = Schedule::Slot;
  using Step = Schedule::Step;
  py::class_<Slot>(m, "ScheduleSlot")
      .def_readonly("value", &Slot::value)
      .def_property_readonly("layout",
                             [](const Slot& slot) { return std::string(to_string(slot.layout)); })
      .def_readonly("bytes", &Slot::bytes)
      .def_readonly("writer", &Slot::writer)
      .def_readonly("view_of", &Slot::view_of)
      .def_readonly("last_use", &Slot::last_use)
      .def_property_readonly("part",
                             [](const Slot& slot) -> std::optional<std::pair<int, std::int64_t>> {
                               if (!slot.part) return std::nullopt;
                               return std::pair(slot.part->buffer, slot.part->channel);
                             });
  py::class_<Step>(m, "ScheduleStep")
      .def_readonly("layer", &Step::layer)
      .def_readonly("covers", &Step::covers)
      .def_property_readonly("problem",
                             [](const Step& step) -> std::optional<std::string> {
                               if (!step.problem) return std::nullopt;
                               return to_string(*step.problem);
                             })
      .def_readonly("primitive", &Step::primitive)
      .def_readonly("src", &Step::src)
      .def_readonly("residual", &Step::residual)
      .def_readonly("dst", &Step::dst)
      .def_readonly("buffer", &Step::buffer);
  py::class_<Schedule>(m, "Schedule")
      .def_readonly("buffers", &Schedule::buffers)
      .def_readonly("slots", &Schedule::slots)
      .def_readonly("steps", &Schedule::steps)
      .def_readonly("inputs", &Schedule::inputs)
      .def_readonly("outputs", &Schedule::outputs);
  py::class_<ConstantsFile>(m, "ConstantsFile")
      .def(py::init([](bool is_packed) {
             return ConstantsFile{is_packed, {}, 0};
           }),
           py::arg("is_packed"))
      .def("add_step", &add_step, py::arg("problem"), py::arg("primitive"), py::arg("device"),
           py::arg("constants"))
      .def_property_readonly("content",
                             [](const ConstantsFile& file) { return py::bytes(file.content); })
      .def_readonly("packed_bytes", &ConstantsFile::packed_bytes)
      .def_readonly("instances", &ConstantsFile::instances);
  m.def(
      "constant_bytes",
      [](const Candidates& candidates) { return constant_bytes(candidates, cpu_device()); },
      py::arg("candidates"), py::call_guard<py::gil_scoped_release>());
  m.def("memory_need", py::overload_cast<const Graph&, const Candidates&>(&memory_need),
        py::arg("graph"), py::arg("candidates"));
  m.def("memory_need", py::overload_cast<const Graph&, const std::vector<Candidate>&>(&memory_need),
        py::arg("graph"), py::arg("transforms"));
  m.def("problem_code",
        [](const std::string& problem) { return problem_code(parse_problem(problem)); });
  m.def("slice_begin", [](const std::string& problem) {
    const auto slice = std::get<SliceProblem>(parse_problem(problem));
    return slice.begin * slice.h * slice.w;
  });
  m.def("content_hash", [](const py::bytes& data) {
    const std::string_view bytes = data;
    return content_hash(bytes.data(), bytes.size());
  });
  m.def("lower", [](const Graph& graph, const Plan& plan) { return lower(graph, plan); });
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "ir/schedule.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "planner/lower.h"
#include "python/module.h"

namespace py = pybind11;

namespace torchalgo {

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
  m.def("lower", [](const Graph& graph, const Plan& plan) { return lower(graph, plan); });
}

}  // namespace torchalgo

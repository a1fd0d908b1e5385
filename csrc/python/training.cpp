// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "all_algorithms.h"
#include "provider/cpu_device.h"
#include "python/module.h"
#include "training/region.h"

namespace py = pybind11;

namespace torchalgo {
namespace {

using Statistics = std::vector<std::tuple<int, at::Tensor, at::Tensor, double>>;

std::vector<at::Tensor> run_region(const std::shared_ptr<TrainingRegion>& region,
                                   const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& parameters,
                                   const Statistics& statistics) {
  const ReleasedGil no_gil;
  std::vector<RunningStatistics> own;
  for (const auto& [node, mean, var, factor] : statistics) own.push_back({node, mean, var, factor});
  return TrainingRegion::run(region, inputs, parameters, own);  // see run() in runner.cpp
}

}  // namespace

void bind_training(py::module_& m) {
  m.def(
      "training_candidates",
      [](const Graph& graph, const std::optional<Device>& device, bool deterministic,
         bool runtime_compiled, bool all_knobs, std::vector<std::string> named, bool coarse_types) {
        const py::gil_scoped_release no_gil;
        return training_candidates(graph, all_algorithms(), device.value_or(cpu_device()),
                                   {.deterministic = deterministic,
                                    .drop_dominated = true,
                                    .coarse_types = coarse_types,
                                    .runtime_compiled = runtime_compiled,
                                    .all_knobs = all_knobs,
                                    .named = std::move(named)});
      },
      py::arg("graph"), py::arg("device"), py::arg("deterministic"), py::arg("runtime_compiled"),
      py::arg("all_knobs"), py::arg("named"), py::arg("coarse_types"));
  py::class_<TrainingRegion, std::shared_ptr<TrainingRegion>>(m, "TrainingRegion")
      .def(py::init([](const Graph& forward, const std::vector<int>& wanted,
                       const std::vector<int>& recomputed, const Candidates& candidates,
                       const Plan& plan, const std::vector<std::pair<int, int>>& parameters,
                       const std::optional<Device>& device) {
             std::vector<NodeParameters> own;
             for (const auto& [weights, bias] : parameters) own.push_back({weights, bias});
             return std::make_shared<TrainingRegion>(forward, wanted, recomputed, candidates, plan,
                                                     std::move(own), device.value_or(cpu_device()));
           }),
           py::arg("forward"), py::arg("wanted"), py::arg("recomputed"), py::arg("candidates"),
           py::arg("plan"), py::arg("parameters"), py::arg("device"))
      .def("run", &run_region, py::arg("inputs"), py::arg("parameters"), py::arg("statistics"))
      .def_property_readonly("saved", [](const TrainingRegion& region) {
        std::vector<std::tuple<std::string, std::string, std::int64_t>> found;
        for (const SavedTensor& each : region.saved())
          found.emplace_back(each.value, to_string(each.layout), each.bytes);
        return found;
      });
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "all_algorithms.h"
#include "base/error.h"
#include "planner/pareto.h"
#include "planner/resource.h"
#include "planner/staged_plan.h"
#include "planner/training_graph.h"
#include "provider/cpu_device.h"
#include "provider/find_candidates.h"
#include "provider/kernel.h"
#include "provider/packing.h"
#include "python/module.h"

namespace py = pybind11;

namespace torchalgo {
namespace {

// Binds the fields of the options one by one, for options_from.
void bind_options(py::module_& m) {
  py::class_<Resource>(m, "Resource")
      .def(py::init<std::string, std::vector<std::vector<std::int64_t>>, std::int64_t, double>(),
           py::arg("name"), py::arg("use"), py::arg("limit"), py::arg("unit") = 1.0)
      .def_readonly("name", &Resource::name)
      .def_readonly("limit", &Resource::limit)
      .def_readonly("unit", &Resource::unit);
  py::class_<PlanOptions>(m, "PlanOptions")
      .def(py::init<>())
      .def_readwrite("allow", &PlanOptions::allow)
      .def_property("layouts", nullptr,
                    [](PlanOptions& options, const std::vector<std::string>& words) {
                      for (const std::string& word : words)
                        options.layouts.push_back(require_layout(word));
                    })
      .def_readwrite("workspace_limit_bytes", &PlanOptions::workspace_limit_bytes)
      .def_readwrite("resources", &PlanOptions::resources)
      .def_readwrite("time_limit_s", &PlanOptions::time_limit_s)
      .def_readwrite("with_regrets", &PlanOptions::with_regrets)
      .def_readwrite("with_certificate", &PlanOptions::with_certificate);
}

// Results in Python's types.
std::string to_python(std::string text) { return text; }

std::pair<Plan, std::vector<CostKey>> to_python(PlanResult result) {
  return {std::move(result.plan), std::move(result.wanted)};
}

std::vector<std::pair<Plan, std::int64_t>> to_python(std::vector<FrontPoint> front) {
  std::vector<std::pair<Plan, std::int64_t>> rows;
  for (FrontPoint& point : front) rows.emplace_back(std::move(point.plan), point.use);
  return rows;
}

// Binds a step from a graph and costs to a plan or plans. The keyword arguments are the fields of
// PlanOptions.
template <typename Step>
void bind_step(py::module_& m, const char* name, Step step) {
  m.def(
      name,
      [step](const Graph& graph, const Candidates& candidates,
             const std::vector<Candidate>& transforms, const CostTable& costs,
             const py::kwargs& options) {
        return to_python(
            step(graph, candidates, transforms, costs, options_from<PlanOptions>(options)));
      },
      py::arg("graph"), py::arg("candidates"), py::arg("transforms"), py::arg("costs"));
}

void bind_steps(py::module_& m) {
  m.def(
      "transform_candidates",
      [](const Graph& graph, const Candidates& candidates, const std::optional<Device>& device) {
        return transform_candidates(graph, candidates, [&](const Problem& problem) {
          return offers_of(problem, all_algorithms(), device.value_or(cpu_device())).primitives;
        });
      },
      py::arg("graph"), py::arg("candidates"), py::arg("device") = py::none());
  bind_step(m, "make_plan", &make_plan);
  bind_step(m, "make_local_plan", &make_local_plan);
  bind_step(m, "make_staged_plan", &make_staged_plan);
  bind_step(m, "plan_problem_text", &plan_problem_text);
  bind_step(m, "workspace_front", &workspace_front);
  m.def(
      "resource_front",
      [](const Graph& graph, const Candidates& candidates, const std::vector<Candidate>& transforms,
         const CostTable& costs, int max_points, const py::kwargs& options) {
        return to_python(resource_front(graph, candidates, transforms, costs,
                                        options_from<PlanOptions>(options), max_points));
      },
      py::arg("graph"), py::arg("candidates"), py::arg("transforms"), py::arg("costs"),
      py::arg("max_points"));
  m.def(
      "resource_use",
      py::overload_cast<const Graph&, const Candidates&, const std::vector<Resource>&, const Plan&>(
          &planner::resource_use_of),
      py::arg("graph"), py::arg("candidates"), py::arg("resources"), py::arg("plan"));
}

// One candidate per primitive, each for its node alone.
Candidates single_candidates(const Graph& graph,
                             const std::vector<std::vector<Primitive>>& primitives) {
  TORCHALGO_CHECK(primitives.size() == graph.nodes.size(),
                  "TA2306 single_candidates: got the primitives of {} nodes, expected those of {}",
                  primitives.size(), graph.nodes.size());
  Candidates candidates;
  candidates.by_anchor.resize(graph.nodes.size());
  candidates.refusals.resize(graph.nodes.size());
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!node.problem) continue;
    for (const Primitive& primitive : primitives[n]) {
      candidates.by_anchor[n].push_back(
          {{static_cast<int>(n)}, *node.problem, primitive, node.inputs});
    }
  }
  return candidates;
}

void bind_packed_bytes(py::module_& m) {
  m.def(
      "packed_bytes",
      [](const std::string& problem, const Primitive& primitive) -> std::int64_t {
        const Algorithm* algorithm = find_algorithm(all_algorithms(), primitive.name);
        if (algorithm == nullptr) return 0;
        return packed_bytes(algorithm->prepare(parse_problem(problem), primitive, cpu_device()));
      },
      py::arg("problem"), py::arg("primitive"), py::call_guard<py::gil_scoped_release>());
  m.def(
      "packed_bytes_of",
      [](const Candidates& candidates) {
        return packed_bytes(candidates, all_algorithms(), cpu_device());
      },
      py::arg("candidates"), py::call_guard<py::gil_scoped_release>());
  m.def(
      "plain_weight_bytes",
      [](const std::string& problem) { return plain_weight_bytes(parse_problem(problem)); },
      py::arg("problem"));
}

}  // namespace

void bind_planner(py::module_& m) {
  bind_packed_bytes(m);
  bind_options(m);
  bind_steps(m);
  m.def("training_graph", &training_graph, py::arg("inference"),
        py::arg("wanted") = std::vector<int>(), py::arg("recomputed") = std::vector<int>());
  m.def("recomputable_values", &recomputable_values, py::arg("inference"));
  m.def("single_candidates", &single_candidates, py::arg("graph"), py::arg("primitives"));
}

}  // namespace torchalgo

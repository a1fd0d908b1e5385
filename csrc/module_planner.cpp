// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "all_algorithms.h"
#include "base/error.h"
#include "module.h"
#include "planner/pareto.h"
#include "planner/training_graph.h"
#include "provider/packed_bytes.h"

namespace py = pybind11;

namespace torchalgo {
namespace {

using Allow = std::optional<std::function<bool(const Candidate&)>>;

PlanOptions limited_options(const Allow& allow, std::vector<Resource> resources,
                            std::optional<std::int64_t> workspace_limit_bytes,
                            double time_limit_s) {
  PlanOptions options;
  if (allow) options.allow = *allow;
  options.resources = std::move(resources);
  options.workspace_limit_bytes = workspace_limit_bytes;
  options.time_limit_s = time_limit_s;
  return options;
}

std::vector<std::pair<Plan, std::int64_t>> front_rows(std::vector<FrontPoint> front) {
  std::vector<std::pair<Plan, std::int64_t>> rows;
  for (FrontPoint& point : front) rows.emplace_back(std::move(point.plan), point.use);
  return rows;
}

// One candidate per primitive, each for its node alone.
Candidates single_candidates(const Graph& graph,
                             const std::vector<std::vector<Primitive>>& primitives) {
  TORCHALGO_CHECK(primitives.size() == graph.nodes.size(),
                  "single_candidates: primitives of {} nodes, expected {}", primitives.size(),
                  graph.nodes.size());
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

void bind_limits(py::module_& m) {
  py::class_<Resource>(m, "Resource")
      .def(py::init<std::string, std::vector<std::vector<std::int64_t>>, std::int64_t, double>(),
           py::arg("name"), py::arg("use"), py::arg("limit"), py::arg("unit") = 1.0)
      .def_readonly("name", &Resource::name)
      .def_readonly("limit", &Resource::limit)
      .def_readonly("unit", &Resource::unit);
  m.def(
      "make_limited_plan",
      [](const Graph& graph, const Candidates& candidates, const std::vector<Candidate>& transforms,
         const CostTable& costs, const Allow& allow, std::vector<Resource> resources,
         std::optional<std::int64_t> workspace_limit_bytes, double time_limit_s) {
        PlanResult result = make_plan(
            graph, candidates, transforms, costs,
            limited_options(allow, std::move(resources), workspace_limit_bytes, time_limit_s));
        return std::tuple(std::move(result.plan), std::move(result.wanted), result.use);
      },
      py::arg("graph"), py::arg("candidates"), py::arg("transforms"), py::arg("costs"),
      py::kw_only(), py::arg("allow") = py::none(), py::arg("resources") = std::vector<Resource>(),
      py::arg("workspace_limit_bytes") = py::none(), py::arg("time_limit_s") = 10.0);
  m.def(
      "workspace_front",
      [](const Graph& graph, const Candidates& candidates, const std::vector<Candidate>& transforms,
         const CostTable& costs, const Allow& allow,
         std::optional<std::int64_t> workspace_limit_bytes, double time_limit_s) {
        return front_rows(
            workspace_front(graph, candidates, transforms, costs,
                            limited_options(allow, {}, workspace_limit_bytes, time_limit_s)));
      },
      py::arg("graph"), py::arg("candidates"), py::arg("transforms"), py::arg("costs"),
      py::kw_only(), py::arg("allow") = py::none(), py::arg("workspace_limit_bytes") = py::none(),
      py::arg("time_limit_s") = 10.0);
  m.def(
      "resource_front",
      [](const Graph& graph, const Candidates& candidates, const std::vector<Candidate>& transforms,
         const CostTable& costs, std::vector<Resource> resources, int max_points,
         const Allow& allow, std::optional<std::int64_t> workspace_limit_bytes,
         double time_limit_s) {
        return front_rows(resource_front(
            graph, candidates, transforms, costs,
            limited_options(allow, std::move(resources), workspace_limit_bytes, time_limit_s),
            max_points));
      },
      py::arg("graph"), py::arg("candidates"), py::arg("transforms"), py::arg("costs"),
      py::kw_only(), py::arg("resources"), py::arg("max_points"), py::arg("allow") = py::none(),
      py::arg("workspace_limit_bytes") = py::none(), py::arg("time_limit_s") = 10.0);
}

}  // namespace

void bind_planner(py::module_& m) {
  bind_packed_bytes(m);
  bind_limits(m);
  m.def("training_graph", &training_graph, py::arg("inference"));
  m.def("single_candidates", &single_candidates, py::arg("graph"), py::arg("primitives"));
}

}  // namespace torchalgo

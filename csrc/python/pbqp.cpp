// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "pbqp/certificate.h"
#include "pbqp/solve.h"
#include "pbqp/text.h"
#include "python/module.h"

namespace py = pybind11;

namespace torchalgo {
namespace {

using pbqp::Cost;
using pbqp::kForbidden;
using MaybeCost = std::optional<Cost>;  // None: forbidden
using Fields = py::dict;

/// Runs a step of the solver and turns its exceptions into torchalgo's errors.
template <typename Step>
auto rethrow(Step step) {
  try {
    return step();
  } catch (const std::invalid_argument& error) {
    throw Error(fmt::format("TA8001 {}", error.what()));
  }
}

std::vector<Cost> read_costs(const py::buffer& buffer) {
  const py::buffer_info info = buffer.request();
  TORCHALGO_CHECK(
      info.ndim == 1 && info.itemsize == sizeof(Cost) && info.strides[0] == sizeof(Cost),
      "TA8001 pbqp: got costs of another form, expected contiguous 64-bit integers");
  const auto* costs = static_cast<const Cost*>(info.ptr);
  return {costs, costs + info.size};
}

using EdgeBuffers = std::vector<std::tuple<int, int, py::buffer>>;

pbqp::Problem make_problem(const std::vector<py::buffer>& nodes, const EdgeBuffers& edges) {
  pbqp::Problem problem;
  for (const py::buffer& costs : nodes) problem.node_costs.push_back(read_costs(costs));
  for (const auto& [u, v, matrix] : edges) problem.edges.push_back({u, v, read_costs(matrix)});
  rethrow([&] { pbqp::check_problem(problem); });
  return problem;
}

MaybeCost maybe(Cost cost) { return cost == kForbidden ? MaybeCost() : MaybeCost(cost); }

std::vector<MaybeCost> maybe(const std::vector<Cost>& costs) {
  std::vector<MaybeCost> result;
  for (const Cost cost : costs) result.push_back(maybe(cost));
  return result;
}

py::list marginal_rows(const pbqp::Solution& solution) {
  py::list rows;
  for (const auto& marginals : solution.marginals) {
    py::list row;
    for (const auto& [cost, is_exact] : marginals)
      row.append(py::make_tuple(maybe(cost), is_exact));
    rows.append(std::move(row));
  }
  return rows;
}

py::list event_rows(const pbqp::Solution& solution) {
  py::list rows;
  for (const auto& [seconds, text, lower_bound, cost] : solution.transcript)
    rows.append(py::make_tuple(seconds, text, maybe(lower_bound), maybe(cost)));
  return rows;
}

Fields solve_problem(const pbqp::Problem& problem, const pbqp::SolveOptions& options) {
  const auto solution = [&] {
    const py::gil_scoped_release release;
    return rethrow([&] { return pbqp::solve(problem, options); });
  }();
  const bool has_choice =
      solution.status == pbqp::Status::kOptimal || solution.status == pbqp::Status::kFeasible;
  Fields fields;
  fields["status"] = pbqp::to_string(solution.status);
  fields["choice"] = has_choice ? py::cast(solution.choice) : py::none();
  fields["cost"] = has_choice ? py::cast(solution.cost) : py::none();
  fields["lower_bound"] = maybe(solution.lower_bound);
  fields["method"] = solution.method;
  fields["kind"] = pbqp::to_string(solution.certificate.kind);
  fields["certificate"] = pbqp::certificate_text(problem, solution);
  fields["marginals"] = marginal_rows(solution);
  fields["fixed"] = solution.is_fixed;
  fields["transcript"] = event_rows(solution);
  return fields;
}

}  // namespace

void bind_pbqp(py::module_& m) {
  py::class_<pbqp::Problem>(m, "PbqpProblem")
      .def(py::init(&make_problem), py::arg("node_costs"), py::arg("edges"))
      .def_static("parse",
                  [](const std::string& text) {
                    return rethrow([&] { return pbqp::parse_problem(text); });
                  })
      .def("to_text", [](const pbqp::Problem& problem) { return pbqp::to_text(problem); })
      .def("node_costs",
           [](const pbqp::Problem& problem) {
             std::vector<std::vector<MaybeCost>> nodes;
             for (const auto& costs : problem.node_costs) nodes.push_back(maybe(costs));
             return nodes;
           })
      .def("edges",
           [](const pbqp::Problem& problem) {
             std::vector<std::tuple<int, int, std::vector<MaybeCost>>> edges;
             for (const auto& [u, v, matrix] : problem.edges)
               edges.emplace_back(u, v, maybe(matrix));
             return edges;
           })
      .def("evaluate",
           [](const pbqp::Problem& problem, const std::vector<int>& choice) {
             return rethrow([&] { return maybe(pbqp::evaluate(problem, choice)); });
           })
      .def(
          "solve",
          [](const pbqp::Problem& problem, std::int64_t table_cap, double time_limit_s,
             bool with_marginals, bool with_transcript, std::int64_t proof_cap) {
            return solve_problem(
                problem, {table_cap, time_limit_s, with_marginals, with_transcript, proof_cap});
          },
          py::kw_only(), py::arg("table_cap") = pbqp::SolveOptions().table_cap,
          py::arg("time_limit_s"), py::arg("with_marginals"), py::arg("with_transcript"),
          py::arg("proof_cap") = pbqp::SolveOptions().proof_cap);
}

}  // namespace torchalgo

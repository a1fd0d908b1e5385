// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "all_algorithms.h"
#include "base/error.h"
#include "cudnn_algo/device_properties.h"
#include "cudnn_algo/engine_config.h"
#include "cudnn_algo/errata.h"
#include "cudnn_algo/legacy.h"
#include "cudnn_algo/list.h"
#include "cudnn_algo/plan.h"
#include "cudnn_algo/run.h"
#include "ir/algorithm.h"
#include "provider/cuda_device.h"
#include "python/module.h"

namespace py = pybind11;

namespace torchalgo {
namespace {

using OneOffer = std::tuple<std::optional<Primitive>, Traits, std::string>;

OneOffer offer_one(const std::string& problem, const Primitive& primitive, const Device& device) {
  const Algorithm* row = find_algorithm(all_algorithms(), primitive.name);
  TORCHALGO_CHECK(row != nullptr, "TA4004 offer_one: no algorithm has the name '{}'",
                  primitive.name);
  Offer offer = offer_exact(*row, parse_problem(problem), device, primitive.name, primitive.src,
                            primitive.dst);
  if (!offer.refusal.empty()) return {std::nullopt, Traits(), std::move(offer.refusal)};
  Traits traits = offer.traits.empty() ? Traits() : std::move(offer.traits[0]);
  return {std::move(offer.primitives.at(0)), std::move(traits), {}};
}

Direction to_direction(const std::string& word) {
  for (const Direction direction :
       {Direction::kForward, Direction::kBackwardData, Direction::kBackwardFilter}) {
    if (word == to_string(direction)) return direction;
  }
  throw Error(
      fmt::format("TA4006 '{}' is no direction: expected fwd, bwd_data or bwd_filter", word));
}

std::vector<std::pair<int, std::string>> legacy_algorithms(const std::string& direction) {
  std::vector<std::pair<int, std::string>> words;
  for (const cudnn::LegacyAlgorithm& each : cudnn::legacy_algorithms(to_direction(direction))) {
    words.emplace_back(each.number, each.word);
  }
  return words;
}

std::map<std::string, std::int64_t> execution_stats() {
  const cudnn::ExecutionStats stats = cudnn::execution_stats();
  return {{"plans_built", stats.plans_built},
          {"plans_evicted", stats.plans_evicted},
          {"tensors_repacked", stats.tensors_repacked},
          {"workspaces_grown", stats.workspaces_grown}};
}

std::shared_ptr<const cudnn::Api> loaded_api() {
  const cudnn::LoadedApi loaded = cudnn::process_api();
  TORCHALGO_CHECK(loaded.api, "TA5101 cuDNN is absent: {}", loaded.absence);
  return loaded.api;
}

// Makes the execution plan of a cudnn9 primitive for a described GPU. Returns the bytes of its
// workspace, and the plan as cuDNN writes it in JSON.
std::pair<std::int64_t, std::string> plan_of(const std::string& text, const Primitive& primitive,
                                             const Device& device) {
  const auto api = loaded_api();
  const auto properties = cudnn::make_device_properties(*api, device.properties);
  TORCHALGO_CHECK(properties.descriptor, "TA5103 cuDNN: {}", properties.refusal);
  const cudnn::Target target{
      .handle = nullptr, .properties = &*properties.descriptor, .isa = device.isa};
  const Problem problem = parse_problem(text);
  const cudnn::EngineSpec spec = cudnn::require_engine_spec(primitive);
  const cudnn::ExecutionPlanAnswer answer = cudnn::make_execution_plan(
      *api, target, std::get<ConvProblem>(problem), cudnn::layouts_of(primitive), spec);
  TORCHALGO_CHECK(answer.plan, "TA5103 cuDNN makes no plan: {}", answer.refusal);
  return {answer.plan->workspace_bytes, cudnn::json_of(*answer.plan)};
}

}  // namespace

void bind_cudnn(py::module_& m) {
  m.def("offer_one", &offer_one, py::arg("problem"), py::arg("primitive"), py::arg("device"),
        py::call_guard<py::gil_scoped_release>());
  m.def("cudnn_version", [] {
    const cudnn::LoadedApi loaded = cudnn::process_api();
    return loaded.api ? std::optional(cudnn::version_text(*loaded.api)) : std::nullopt;
  });
  m.def("cudnn_absence", [] { return cudnn::process_api().absence; });
  m.def("cudnn_execution_stats", &execution_stats);
  m.def(
      "cudnn_properties_of_gpu",
      [](int index) { return cudnn::properties_of_gpu(*loaded_api(), index); }, py::arg("index"));
  m.def("cudnn_plan", &plan_of, py::arg("problem"), py::arg("primitive"), py::arg("device"));
  py::class_<cudnn::Erratum>(m, "Erratum")
      .def(py::init([](std::string id, std::string operation, std::int64_t engine,
                       std::int64_t first_version, std::int64_t end_version) {
             cudnn::Erratum erratum{std::move(id), std::move(operation), engine, first_version};
             if (end_version >= 0) erratum.end_version = end_version;
             return erratum;
           }),
           py::arg("id"), py::arg("operation"), py::arg("engine"), py::arg("first_version"),
           py::arg("end_version"));
  m.def("set_cudnn_errata", &cudnn::set_errata, py::arg("rules"));
  m.def("legacy_algorithms", &legacy_algorithms, py::arg("direction"));
}

}  // namespace torchalgo

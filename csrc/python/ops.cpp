// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/choice.h"
#include "ops/enable.h"
#include "ops/recorded_runs.h"
#include "ops/settings.h"
#include "python/module.h"

namespace py = pybind11;

namespace torchalgo {
namespace {

using ChoiceTexts = std::tuple<std::string, std::string, std::string>;

DirectionChoices to_choices(const std::string& forward, const std::string& backward_data,
                            const std::string& backward_filter) {
  return {parse_choice(forward), parse_choice(backward_data), parse_choice(backward_filter)};
}

ChoiceTexts texts_of(const DirectionChoices& choices) {
  return {to_string(choices.forward), to_string(choices.backward_data),
          to_string(choices.backward_filter)};
}

constexpr std::pair<ConflictPolicy, const char*> kPolicies[] = {
    {ConflictPolicy::kError, "error"},
    {ConflictPolicy::kFallback, "fallback"},
    {ConflictPolicy::kHonour, "honour"}};

ConflictPolicy to_policy(const std::string& word) {
  for (const auto& [policy, name] : kPolicies) {
    if (word == name) return policy;
  }
  throw Error(fmt::format(
      "TA4405 torchalgo: '{}' is no conflict policy: expected error, fallback or honour", word));
}

std::string word_of(ConflictPolicy policy) {
  return kPolicies[static_cast<std::size_t>(policy)].second;
}

std::map<std::string, std::string> set_planned(const std::map<std::string, std::string>& texts) {
  PlannedChoices choices;
  for (const auto& [problem, text] : texts) {
    choices[to_string(parse_problem(problem))] = parse_choice(text);
  }
  std::map<std::string, std::string> old;
  for (const auto& [problem, choice] : set_planned_choices(std::move(choices))) {
    old[problem] = to_string(choice);
  }
  return old;
}

}  // namespace

void bind_ops(py::module_& m) {
  const auto bind_choices = [&m](const std::string& name, DirectionChoices (*set)(DirectionChoices),
                                 DirectionChoices ConvSettings::*member) {
    m.def(("set_" + name + "_choices").c_str(),
          [set](const std::string& forward, const std::string& backward_data,
                const std::string& backward_filter) {
            return texts_of(set(to_choices(forward, backward_data, backward_filter)));
          },
          py::arg("forward"), py::arg("backward_data"), py::arg("backward_filter"));
    m.def((name + "_choices").c_str(), [member] { return texts_of(conv_settings().*member); });
  };
  bind_choices("flag", &set_flag_choices, &ConvSettings::flags);
  bind_choices("context", &set_context_choices, &ConvSettings::context);
  m.def("set_planned_choices", &set_planned, py::arg("choices"));
  m.def(
      "set_conflict_policy",
      [](const std::string& policy) { return word_of(set_conflict_policy(to_policy(policy))); },
      py::arg("policy"));
  m.def("set_enabled", &set_enabled, py::arg("enabled"), py::call_guard<py::gil_scoped_release>());
  m.def("is_enabled", &is_enabled);
  m.def("set_recording", &set_recording, py::arg("recording"));
  m.def("recorded_runs", [] {
    std::vector<std::tuple<std::string, std::string, std::string, std::int64_t>> runs;
    for (const RecordedRun& run : recorded_runs()) {
      runs.emplace_back(run.problem, run.primitive, run.step, run.count);
    }
    return runs;
  });
  m.def("reset_recorded_runs", &reset_recorded_runs);
  m.def(
      "parse_choice", [](const std::string& text) { return to_string(parse_choice(text)); },
      py::arg("text"));
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "planner/staged_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

namespace torchalgo {
namespace {

enum class Stage : std::uint8_t { kForward, kDataGradients, kWeightGradients };

bool is_backward_filter(const Node& node) {
  const auto* conv = node.problem ? std::get_if<ConvProblem>(&*node.problem) : nullptr;
  return conv != nullptr && conv->direction == Direction::kBackwardFilter;
}

std::vector<Stage> stages_of(const Graph& graph) {
  std::vector<bool> is_gradient(graph.values.size(), false);
  for (const int input : graph.inputs)
    is_gradient[input] = graph.values[input].name.ends_with(".grad");
  std::vector<Stage> stages;
  for (const Node& node : graph.nodes) {
    const bool goes_back = std::any_of(node.inputs.begin(), node.inputs.end(),
                                       [&](int value) { return is_gradient[value]; });
    for (const int value : node.outputs) is_gradient[value] = goes_back;
    stages.push_back(!goes_back                 ? Stage::kForward
                     : is_backward_filter(node) ? Stage::kWeightGradients
                                                : Stage::kDataGradients);
  }
  return stages;
}

// A graph and its candidates, without the nodes of later stages. All values keep their places.
struct Part {
  Graph graph;
  Candidates candidates;
};

Part part_until(const Graph& graph, const std::vector<std::vector<Candidate>>& open,
                const std::vector<Stage>& stages, Stage last) {
  std::vector<int> place(graph.nodes.size(), -1);
  Part part{{graph.values, {}, graph.inputs, graph.input_layouts, {}}, {}};
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (stages[n] > last) continue;
    place[n] = static_cast<int>(part.graph.nodes.size());
    part.graph.nodes.push_back(graph.nodes[n]);
  }
  for (Value& value : part.graph.values) {
    if (value.producer >= 0) value.producer = place[value.producer];
  }
  for (const int output : graph.outputs) {
    const int producer = graph.values[output].producer;
    if (producer < 0 || place[producer] >= 0) part.graph.outputs.push_back(output);
  }
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (place[n] < 0) continue;
    std::vector<Candidate>& own = part.candidates.by_anchor.emplace_back();
    part.candidates.refusals.emplace_back();
    for (Candidate candidate : open[n]) {
      for (int& node : candidate.covers) node = place[node];
      if (std::count(candidate.covers.begin(), candidate.covers.end(), -1) == 0)
        own.push_back(std::move(candidate));
    }
  }
  return part;
}

// Leaves only the candidates of `plan` to the nodes that it has.
void keep_chosen(const Graph& graph, const Plan& plan, std::vector<std::vector<Candidate>>& open) {
  std::map<std::string, const PlanNode*> chosen;
  for (const PlanNode& node : plan.nodes) chosen[node.name] = &node;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto found = chosen.find(graph.nodes[n].name);
    if (found == chosen.end()) continue;
    std::erase_if(open[n], [&](const Candidate& candidate) {
      return !(candidate.primitive == found->second->primitive) ||
             to_string(candidate.problem) != found->second->problem;
    });
  }
}

}  // namespace

PlanResult make_staged_plan(const Graph& graph, const Candidates& candidates,
                            const std::vector<Candidate>& transforms, const CostTable& costs,
                            const PlanOptions& options) {
  std::vector<std::vector<Candidate>> open = candidates.by_anchor;
  PlanOptions rest = options;
  rest.allow = nullptr;
  if (options.allow) {
    for (auto& own : open)
      std::erase_if(own, [&](const Candidate& c) { return !options.allow(c); });
  }
  const std::vector<Stage> stages = stages_of(graph);
  std::set<CostKey> wanted;
  PlanResult result;
  for (const Stage last : {Stage::kForward, Stage::kDataGradients, Stage::kWeightGradients}) {
    const Part part = part_until(graph, open, stages, last);
    result = make_plan(part.graph, part.candidates, transforms, costs, rest);
    wanted.insert(result.wanted.begin(), result.wanted.end());
    if (result.plan.structure_hash.empty()) break;  // costs are missing
    keep_chosen(graph, result.plan, open);
  }
  result.wanted.assign(wanted.begin(), wanted.end());
  return result;
}

}  // namespace torchalgo

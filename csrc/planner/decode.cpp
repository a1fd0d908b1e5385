// SPDX-License-Identifier: BSD-3-Clause
#include "planner/decode.h"

#include "base/error.h"

namespace torchalgo::planner {
namespace {

using Chosen = std::vector<const Alternative*>;  // per node; opaque: null

Chosen chosen_alternatives(const Model& model, const Encoding& encoding,
                           const std::vector<int>& choice) {
  Chosen chosen(model.graph.nodes.size(), nullptr);
  for (std::size_t n = 0; n < chosen.size(); ++n) {
    const int variable = encoding.variable[n];
    if (variable >= 0) chosen[n] = &model.alternatives[n][choice[variable]];
  }
  return chosen;
}

PlanNode plan_node(const Graph& graph, int node, const Alternative& alternative) {
  PlanNode planned;
  planned.name = graph.nodes[node].name;
  if (is_absorbed(alternative)) {
    planned.problem = to_string(*graph.nodes[node].problem);
    planned.absorbed_by = graph.nodes[alternative.covers.front()].name;
    return planned;
  }
  const PricedCandidate& option = alternative.options.front();
  planned.problem = to_string(option.candidate->problem);
  planned.primitive = option.candidate->primitive;
  planned.cost = option.cost.ticks;
  planned.cost_source = option.cost.source;
  return planned;
}

std::vector<Hop> hops_at(const Model& model, const Chosen& chosen, int value) {
  const ValueFlow& flow = model.flow[value];
  Layout written = flow.fixed;
  if (flow.producer >= 0) {
    if (!writes_result(*chosen[flow.producer])) return {};
    written = chosen[flow.producer]->layouts.dst;
  }
  LayoutSet wanted = flow.border;
  for (const int reader : flow.readers) {
    const Alternative& a = *chosen[reader];
    wanted |= layouts_read(model.graph, a.covers, a.position, a.layouts, value);
  }
  return cheapest_tree(model.transforms.at(value), written, wanted);
}

// Inputs of the graph, then results in node order.
std::vector<int> values_in_graph_order(const Graph& graph) {
  std::vector<int> values = graph.inputs;
  for (const Node& node : graph.nodes) {
    values.insert(values.end(), node.outputs.begin(), node.outputs.end());
  }
  return values;
}

const PricedCandidate& transform_of(const Model& model, int value, const Hop& hop) {
  return model.transforms.at(value).direct[index_of(hop.from)][index_of(hop.to)];
}

PlanTransform plan_transform(const Graph& graph, int value, const PricedCandidate& transform) {
  const int producer = graph.values[value].producer;
  return {graph.values[value].name, producer < 0 ? std::string() : graph.nodes[producer].name,
          to_string(transform.candidate->problem), transform.candidate->primitive,
          transform.cost.ticks};
}

}  // namespace

Plan decode(const Model& model, const Encoding& encoding, const pbqp::Solution& solution) {
  const Graph& graph = model.graph;
  const Chosen chosen = chosen_alternatives(model, encoding, solution.choice);
  Plan plan;
  plan.structure_hash = structure_hash(graph);
  for (std::size_t n = 0; n < chosen.size(); ++n) {
    if (chosen[n] == nullptr) continue;
    plan.nodes.push_back(plan_node(graph, static_cast<int>(n), *chosen[n]));
    plan.cost += plan.nodes.back().cost;
  }
  for (const int value : values_in_graph_order(graph)) {
    for (const Hop& hop : hops_at(model, chosen, value)) {
      plan.transforms.push_back(plan_transform(graph, value, transform_of(model, value, hop)));
      plan.cost += plan.transforms.back().cost;
    }
  }
  plan.lower_bound = solution.lower_bound;
  const bool is_proven = plan.cost == plan.lower_bound;
  TORCHALGO_ASSERT(solution.lower_bound <= plan.cost && plan.cost <= solution.cost);
  TORCHALGO_ASSERT(solution.status != pbqp::Status::kOptimal || is_proven);
  plan.status = is_proven ? PlanStatus::kOptimal : PlanStatus::kFeasible;
  plan.method = solution.method;
  return plan;
}

std::set<CostKey> bounds_in_choice(const Model& model, const Encoding& encoding,
                                   const std::vector<int>& choice) {
  const Chosen chosen = chosen_alternatives(model, encoding, choice);
  std::set<CostKey> bounds;
  const auto add = [&](const PricedCandidate& used) {
    if (used.cost.source != CostSource::kBound) return;
    bounds.insert(cost_key(used.candidate->problem, used.candidate->primitive));
  };
  for (const Alternative* alternative : chosen) {
    if (alternative != nullptr && !is_absorbed(*alternative)) add(alternative->options.front());
  }
  for (const int value : values_in_graph_order(model.graph)) {
    for (const Hop& hop : hops_at(model, chosen, value)) add(transform_of(model, value, hop));
  }
  return bounds;
}

}  // namespace torchalgo::planner

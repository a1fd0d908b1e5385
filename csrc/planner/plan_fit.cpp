// SPDX-License-Identifier: BSD-3-Clause
#include "planner/plan_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "ir/fusion_and_chains.h"
#include "ir/transform_shape.h"
#include "ir/view.h"

namespace torchalgo {
namespace {

constexpr const char* kRemedy = "make a plan for this model and these input shapes";

std::vector<int> nodes_with_problem(const Graph& graph) {
  std::vector<int> nodes;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].problem) nodes.push_back(static_cast<int>(n));
  }
  return nodes;
}

// Returns the problem of the node itself, without the epilogue that it absorbs.
bool is_same_operation(const Problem& call, const Problem& own) {
  const Problem planned = layers_of(call).front();
  return planned.index() == own.index() &&
         (planned == own || with_epilogue(planned, {}) == with_epilogue(own, {}));
}

std::string first_difference(const Graph& graph, const Plan& plan) {
  const std::vector<int> nodes = nodes_with_problem(graph);
  for (std::size_t i = 0; i < std::min(nodes.size(), plan.nodes.size()); ++i) {
    const Node& node = graph.nodes[nodes[i]];
    const PlanNode& planned = plan.nodes[i];
    if (node.name != planned.name) {
      return fmt::format("node {} is {} in the plan, {} in the model", i, planned.name, node.name);
    }
    if (!is_same_operation(parse_problem(planned.problem), *node.problem)) {
      return fmt::format("{} is {} in the plan, {} in the model", node.name, planned.problem,
                         to_string(*node.problem));
    }
  }
  if (nodes.size() > plan.nodes.size()) {
    return fmt::format("the plan lacks {}", graph.nodes[nodes[plan.nodes.size()]].name);
  }
  if (nodes.size() < plan.nodes.size()) {
    return fmt::format("the model lacks {}", plan.nodes[nodes.size()].name);
  }
  return "the ops around the planned ones, the inputs or the outputs differ";
}

// Returns true for nodes that every version plans. If a plan lacks one of these, it belongs to
// another model.
bool is_always_planned(const Problem& problem) {
  return is_convolution(problem) || std::holds_alternative<LinearProblem>(problem);
}

// Returns the graph as the version of torchalgo that made the plan imported it. That version may
// not have known an operation that is planned today. Such a plan has no node for it, and PyTorch
// runs it.
Graph as_known_to(const Plan& plan, Graph graph) {
  std::set<std::string_view> planned;
  for (const PlanNode& node : plan.nodes) planned.insert(node.name);
  for (Node& node : graph.nodes) {
    if (!node.problem || is_always_planned(*node.problem) || planned.contains(node.name)) continue;
    node.problem.reset();
    // The importer lists a value once for an op that it does not know.
    std::vector<int> reads;
    for (const int value : node.inputs) {
      if (std::find(reads.begin(), reads.end(), value) == reads.end()) reads.push_back(value);
    }
    node.inputs = std::move(reads);
  }
  return graph;
}

// Throws if the plan or the graph has a node that the other one lacks.
void check_names(const Graph& graph, const Plan& plan) {
  const auto refuse = [&](const char* lacks, std::string_view name) {
    throw Error(fmt::format(
        "TA2201 plan: the plan's structure hash has version {} and this torchalgo writes "
        "version {}, so nodes are found by name, but the {} has no {}; {}",
        plan.structure_version, kStructureVersion, lacks, name, kRemedy));
  };
  std::set<std::string_view> in_graph;
  for (const Node& node : graph.nodes) {
    if (node.problem) in_graph.insert(node.name);
  }
  std::set<std::string_view> missing = in_graph;  // in the plan
  for (const PlanNode& planned : plan.nodes) {
    if (!in_graph.contains(planned.name)) refuse("model", planned.name);
    missing.erase(planned.name);
  }
  if (!missing.empty()) refuse("plan", *missing.begin());
}

// Returns false if `primitive` is a view that cannot compute `problem`. Views are ops of their own
// in the rewritten graph; any other primitive that does not fit falls back when it runs.
bool is_fitting_view(std::string_view primitive, const Problem& problem) {
  if (primitive == kViewSlice) return std::holds_alternative<SliceProblem>(problem);
  if (primitive == kViewConcat) return std::holds_alternative<ConcatProblem>(problem);
  return primitive != kViewRelabel;
}

class Fitter {
 public:
  Fitter(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan) {
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) node_of_[graph.nodes[n].name] = int(n);
    for (std::size_t v = 0; v < graph.values.size(); ++v) value_of_[graph.values[v].name] = int(v);
  }

  FittedPlan fit() {
    FittedPlan fitted;
    fitted.call_at.resize(graph_.nodes.size());
    fitted.is_planned.resize(graph_.nodes.size(), false);
    fitted.transforms.resize(graph_.values.size());
    std::map<std::string, std::vector<int>> absorbed;
    for (const PlanNode& planned : plan_.nodes) {
      const int node = node_of(planned.name);
      TORCHALGO_CHECK(!fitted.is_planned[node],
                      "TA2202 plan: the plan has {} twice, expected it once", planned.name);
      fitted.is_planned[node] = true;
      if (!planned.absorbed_by.empty()) absorbed[planned.absorbed_by].push_back(node);
    }
    for (const PlanNode& planned : plan_.nodes) {
      if (!planned.absorbed_by.empty()) continue;
      PlannedCall call = fit_call(planned, absorbed[planned.name]);
      absorbed.erase(planned.name);
      const int last = call.covers.back();
      fitted.call_at[last] = std::move(call);
    }
    TORCHALGO_CHECK(absorbed.empty(), "TA2202 plan: no entry of the plan computes {}",
                    graph_.nodes[absorbed.begin()->second[0]].name);
    for (const PlanTransform& transform : plan_.transforms) {
      const auto value = value_of_.find(transform.value);
      TORCHALGO_CHECK(value != value_of_.end(), "TA2201 plan: the model has no value {}; {}",
                      transform.value, kRemedy);
      check_transform(transform, graph_.values[value->second]);
      fitted.transforms[value->second].push_back(transform);
    }
    return fitted;
  }

 private:
  [[nodiscard]] int node_of(const std::string& name) const {
    const auto node = node_of_.find(name);
    TORCHALGO_CHECK(node != node_of_.end() && graph_.nodes[node->second].problem,
                    "TA2201 plan: the model has no op {} to plan; {}", name, kRemedy);
    return node->second;
  }

  static void check_transform(const PlanTransform& transform, const Value& value) {
    auto expected = transform_shape(value);
    TORCHALGO_CHECK(expected, "TA2202 plan: the plan changes the layout of {}, which has none",
                    value.name);
    expected->from = transform.primitive.src;
    expected->to = transform.primitive.dst;
    TORCHALGO_CHECK(parse_problem(transform.problem) == Problem(*expected),
                    "TA2201 plan: the layout change of {} is {} in the plan and {} in the model",
                    value.name, transform.problem, to_string(Problem(*expected)));
  }

  // Returns the anchor, then each node that reads the one before it.
  [[nodiscard]] PlannedCall fit_call(const PlanNode& planned, std::vector<int> absorbed) const {
    TORCHALGO_CHECK(!planned.primitive.name.empty(),
                    "TA2202 plan: the plan has no primitive for {}", planned.name);
    const Node& anchor = graph_.nodes[node_of(planned.name)];
    TORCHALGO_CHECK(is_fitting_view(planned.primitive.name, *anchor.problem),
                    "TA2202 plan: {} cannot compute {} ({})", planned.primitive.name, planned.name,
                    planned.problem);
    PlannedCall call{planned.name,        {node_of(planned.name)}, parse_problem(planned.problem),
                     planned.primitive,   anchor.inputs,           std::nullopt,
                     anchor.outputs.at(0)};
    Problem covered = *anchor.problem;
    std::sort(absorbed.begin(), absorbed.end());
    for (const int node : absorbed) covered = absorb(node, covered, call);
    TORCHALGO_CHECK(covered == call.problem,
                    "TA2201 plan: {} is {} in the plan and {} in the model; {}", planned.name,
                    planned.problem, to_string(covered), kRemedy);
    return call;
  }

  [[nodiscard]] Problem absorb(int index, const Problem& covered, PlannedCall& call) const {
    const Node& node = graph_.nodes[index];
    Problem grown = grown_by(node, covered, call);
    call.covers.push_back(index);
    call.dst = node.outputs.at(0);
    return grown;
  }

  // Returns the problem that computes `covered` and then `node`, which reads its result.
  static Problem grown_by(const Node& node, const Problem& covered, PlannedCall& call) {
    const auto link = std::find(node.inputs.begin(), node.inputs.end(), call.dst);
    auto fusion = link == node.inputs.end() ? std::nullopt : fuse(covered, *node.problem);
    TORCHALGO_CHECK(fusion, "TA2202 plan: {} cannot absorb {}", call.name, node.name);
    if (fusion->adds_residual) call.residual = node.inputs[link == node.inputs.begin() ? 1 : 0];
    return std::move(fusion->problem);
  }

  const Graph& graph_;
  const Plan& plan_;
  std::map<std::string, int> node_of_;
  std::map<std::string, int> value_of_;
};

}  // namespace

FittedPlan fit_plan(const Graph& graph, const Plan& plan) {
  TORCHALGO_CHECK(plan.structure_version <= kStructureVersion,
                  "TA2008 plan: the plan's structure hash has version {}, this torchalgo "
                  "reads versions up to {}: update torchalgo, or {}",
                  plan.structure_version, kStructureVersion, kRemedy);
  const std::string hash = structure_hash(graph, plan.structure_version);
  const bool is_same = plan.structure_hash == hash;
  const Graph known = is_same ? graph : as_known_to(plan, graph);
  const bool is_exact =
      is_same || plan.structure_hash == structure_hash(known, plan.structure_version);
  if (!is_exact && plan.structure_version < kStructureVersion) {
    check_names(known, plan);
  } else {
    TORCHALGO_CHECK(is_exact,
                    "TA2201 plan: the plan was made for another model or other input "
                    "shapes (structure {}, this one {}): {}; {}",
                    plan.structure_hash, hash, first_difference(graph, plan), kRemedy);
    TORCHALGO_CHECK(plan.nodes.size() == nodes_with_problem(known).size(),
                    "TA2201 plan: the plan does not fit the model: {}",
                    first_difference(known, plan));
  }
  FittedPlan fitted = Fitter(known, plan).fit();
  fitted.structure_hash = is_exact ? plan.structure_hash : structure_hash(known);
  return fitted;
}

}  // namespace torchalgo

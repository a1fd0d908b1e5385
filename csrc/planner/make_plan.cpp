// SPDX-License-Identifier: BSD-3-Clause
#include "planner/make_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "pbqp/certificate.h"
#include "pbqp/solve.h"
#include "pbqp/text.h"
#include "planner/allowed.h"
#include "planner/decode.h"
#include "planner/encode.h"
#include "planner/infeasible.h"
#include "planner/regrets.h"
#include "planner/resource.h"

namespace torchalgo {
namespace planner {
namespace {

constexpr double kLeastSeconds = 1;  // milliseconds are enough, but not on every machine

bool stays_in(const Graph& graph, const Alternative& alternative, Layout layout) {
  if (alternative.options.empty()) return alternative.layouts.dst == layout;
  return keeps_to(graph, *alternative.options.front().candidate, {layout});
}

// Returns the problem in which every node that can run alone in `layout` keeps to it. It is solved
// almost without a search.
pbqp::Problem restricted_to(const Model& model, const Encoding& encoding, Layout layout) {
  pbqp::Problem problem = encoding.problem;
  for (std::size_t n = 0; n < model.alternatives.size(); ++n) {
    const std::vector<Alternative>& alternatives = model.alternatives[n];
    const bool can = std::any_of(alternatives.begin(), alternatives.end(), [&](const auto& a) {
      return a.covers.size() == 1 && stays_in(model.graph, a, layout);
    });
    for (std::size_t a = 0; can && a < alternatives.size(); ++a) {
      if (stays_in(model.graph, alternatives[a], layout)) continue;
      problem.node_costs[encoding.variable[n]][a] = pbqp::kForbidden;
    }
  }
  return problem;
}

// Returns the cheaper one of `best` and the best plan in a single layout. If the optimum is not
// proven in time, a single layout may be better than the choice found. So single layouts are solved
// whatever time is left.
pbqp::Solution or_single_layout(const Model& model, const Encoding& encoding, double time_limit_s,
                                pbqp::Solution best) {
  const pbqp::SolveOptions limits{.time_limit_s = std::max(time_limit_s, kLeastSeconds)};
  const std::string search = best.method;
  for (const Layout layout : kAllLayouts) {
    const pbqp::Solution single = pbqp::solve(restricted_to(model, encoding, layout), limits);
    if (single.choice.empty() || (!best.choice.empty() && single.cost >= best.cost)) continue;
    best.choice = single.choice;
    best.cost = single.cost;
    best.status = pbqp::Status::kFeasible;
    best.method = fmt::format("best in {}, bound by {}", to_string(layout), search);
  }
  return best;
}

void check_fits(const Model& model, const pbqp::Solution& solution) {
  if (solution.status != pbqp::Status::kInfeasible) return;
  throw NoPlan(
      fmt::format("TA2301 make_plan: the allowed candidates do not fit together: {}; allow more "
                  "candidates or transforms",
                  explain_infeasible(model)));
}

// Returns a choice that uses least of the last resource among those that keep the limits of the
// others.
std::vector<int> least_use_of_last(const Encoding& encoding, const Constraints& constraints,
                                   std::size_t last, double time_limit_s) {
  pbqp::Problem problem = encoding.problem;
  Constraints others = constraints;
  others.limit[last] = 0;
  for (std::size_t i = 0; i < problem.node_costs.size(); ++i) {
    for (std::size_t a = 0; a < problem.node_costs[i].size(); ++a) {
      pbqp::Cost& cost = problem.node_costs[i][a];
      if (cost != pbqp::kForbidden) cost = constraints.use[i][a][last];
      others.use[i][a][last] = 0;
    }
  }
  for (pbqp::Edge& edge : problem.edges) {
    for (pbqp::Cost& cost : edge.matrix) {
      if (cost != pbqp::kForbidden) cost = 0;
    }
  }
  return solve_constrained(problem, others, time_limit_s).solution.choice;
}

[[noreturn]] void throw_infeasible_resource(const Model& model, const Encoding& encoding,
                                            const std::vector<Resource>& resources,
                                            std::size_t infeasible_resource, bool within_others,
                                            const std::vector<int>& least_use_choice) {
  NoPlan error("TA2301 make_plan: " + explain_infeasible_resource(model, encoding, resources,
                                                                  infeasible_resource,
                                                                  within_others, least_use_choice));
  error.least_use = resource_use_of(model, encoding, least_use_choice)[infeasible_resource];
  throw error;
}

pbqp::Solution solve_within(const Model& model, const Encoding& encoding,
                            const std::vector<Resource>& resources, double time_limit_s) {
  const Constraints constraints = constraints_of(model, encoding, resources);
  const ConstrainedSolution limited =
      solve_constrained(encoding.problem, constraints, time_limit_s);
  const pbqp::Solution& solution = limited.solution;
  if (!limited.least_use_choice.empty())
    throw_infeasible_resource(model, encoding, resources, limited.infeasible_resource, false,
                              limited.least_use_choice);
  if (solution.status == pbqp::Status::kInfeasible && resources.size() > 1) {
    const std::size_t last = resources.size() - 1;
    const std::vector<int> least_use_choice =
        least_use_of_last(encoding, constraints, last, time_limit_s);
    if (!least_use_choice.empty())
      throw_infeasible_resource(model, encoding, resources, last, true, least_use_choice);
  }
  check_fits(model, solution);
  if (solution.choice.empty()) {
    throw NotInTime(fmt::format(
        "TA2302 make_plan: no plan with {} of at most {} was found in {} s; raise time_limit_s",
        resources[0].name, resources[0].limit, time_limit_s));
  }
  return solution;
}

pbqp::Solution solve_model(const Model& model, const Encoding& encoding,
                           const PlanOptions& options) {
  const double time_limit_s = options.time_limit_s;
  if (!options.resources.empty())
    return solve_within(model, encoding, options.resources, time_limit_s);
  const pbqp::SolveOptions limits{.time_limit_s = time_limit_s,
                                  .with_marginals = options.with_regrets};
  pbqp::Solution solution = pbqp::solve(encoding.problem, limits);
  check_fits(model, solution);
  if (solution.status == pbqp::Status::kOptimal) return solution;
  solution = or_single_layout(model, encoding, time_limit_s, std::move(solution));
  if (solution.choice.empty()) {
    throw NotInTime(fmt::format(
        "TA2302 make_plan: no plan was found in {} s; raise time_limit_s or allow fewer candidates",
        time_limit_s));
  }
  return solution;
}

LayoutSet intermediate_layouts(const PlanOptions& options) {
  LayoutSet set = options.layouts.empty() ? kLayoutSetCount - 1 : 0;
  for (const Layout layout : options.layouts) set |= set_of(layout);
  return set;
}

// The model of the allowed candidates, and the keys of its missing costs.
struct PricedModel {
  Model model;
  std::set<CostKey> missing;
};

PricedModel price(const Graph& graph, const Candidates& candidates, const CandidateLists& allowed,
                  const std::vector<Candidate>& transforms, const CostTable& costs,
                  const PlanOptions& options) {
  std::set<CostKey> missing;
  PricedLists priced = price_candidates(allowed, costs, missing);
  add_resource_use(candidates, options.resources, priced);
  std::vector<ValueFlow> flow = trace_values(graph);
  const std::vector<LayoutSet> at_value = layouts_at_values(graph, flow, allowed);
  TransformCosts changes = price_transforms(
      flow, at_value, intermediate_layouts(options), transforms, costs, missing,
      options.workspace_limit_bytes.value_or(std::numeric_limits<std::int64_t>::max()));
  return {{graph, std::move(flow), list_alternatives(graph, priced), std::move(changes)},
          std::move(missing)};
}

PlanResult plan_model(const Model& model, const PlanOptions& options) {
  const Encoding encoding = encode(model);
  const pbqp::Solution solution = solve_model(model, encoding, options);
  const std::set<CostKey> bounds = bounds_in_choice(model, encoding, solution.choice);
  PlanResult result{decode(model, encoding, solution), {bounds.begin(), bounds.end()}, {}};
  if (!options.resources.empty()) {
    const ResourceUse uses = resource_use_of(model, encoding, solution.choice);
    result.use.assign(uses.begin(), uses.begin() + static_cast<int>(options.resources.size()));
    return result;
  }
  if (options.with_regrets) add_regrets(model, encoding, solution, result.plan);
  if (options.with_certificate) {
    result.plan.certificate = pbqp::certificate_text(encoding.problem, solution);
  }
  return result;
}

// Returns the plan without limits, with its regrets and certificate, if it keeps the limits anyway.
// Also returns it if costs are missing. Otherwise returns nullopt.
std::optional<PlanResult> plan_freely(const Graph& graph, const Candidates& candidates,
                                      const std::vector<Candidate>& transforms,
                                      const CostTable& costs, const PlanOptions& options) {
  PlanOptions free = options;
  free.resources.clear();
  PlanResult result = make_plan(graph, candidates, transforms, costs, free);
  if (result.plan.structure_hash.empty()) return result;
  result.use = resource_use_of(graph, candidates, options.resources, result.plan);
  if (!keeps_limits(result.use, options.resources)) return std::nullopt;
  return result;
}

// Returns the plan that the search within the limits finds, or `free`, which keeps the limits, if
// that is no dearer or the search finds none in time.
PlanResult plan_within(const Model& model, const PlanOptions& options, PlanResult free) {
  try {
    PlanResult limited = plan_model(model, options);
    return limited.plan.cost < free.plan.cost ? limited : free;
  } catch (const NotInTime&) {
    return free;
  }
}

// Returns true if no other plan can be better, or if costs are missing.
bool is_final(const PlanResult& result) {
  return result.plan.structure_hash.empty() || result.plan.status == PlanStatus::kOptimal;
}

}  // namespace
}  // namespace planner

PlanResult make_plan(const Graph& graph, const Candidates& candidates,
                     const std::vector<Candidate>& transforms, const CostTable& costs,
                     const PlanOptions& options) {
  std::optional<PlanResult> free;
  if (!options.resources.empty()) {
    planner::check_resources(candidates, options.resources);
    free = planner::plan_freely(graph, candidates, transforms, costs, options);
    if (free && planner::is_final(*free)) return *std::move(free);
  }
  const auto allowed = planner::allowed_candidates(graph, candidates, options);
  const auto [model, missing] =
      planner::price(graph, candidates, allowed, transforms, costs, options);
  if (!missing.empty()) return {{}, {missing.begin(), missing.end()}, {}};
  return free ? planner::plan_within(model, options, *std::move(free))
              : planner::plan_model(model, options);
}

std::string plan_problem_text(const Graph& graph, const Candidates& candidates,
                              const std::vector<Candidate>& transforms, const CostTable& costs,
                              const PlanOptions& options) {
  const auto allowed = planner::allowed_candidates(graph, candidates, options);
  const auto [model, missing] =
      planner::price(graph, candidates, allowed, transforms, costs, options);
  TORCHALGO_CHECK(
      missing.empty(),
      "TA2303 plan_problem_text: {} costs are missing, the first of {} {}: measure them",
      missing.size(), missing.begin()->primitive, missing.begin()->problem);
  return pbqp::to_text(planner::encode(model).problem);
}

PlanResult make_local_plan(const Graph& graph, const Candidates& candidates,
                           const std::vector<Candidate>& transforms, const CostTable& costs,
                           const PlanOptions& options) {
  const auto allowed = planner::allowed_candidates(graph, candidates, options);
  const auto [all, missing] =
      planner::price(graph, candidates, allowed, transforms, costs, options);
  if (!missing.empty()) return {{}, {missing.begin(), missing.end()}, {}};
  const auto fastest = planner::own_fastest(graph, allowed, costs);
  const auto [model, none] = planner::price(graph, candidates, fastest, transforms, costs, options);
  return planner::plan_model(model, options);
}

}  // namespace torchalgo

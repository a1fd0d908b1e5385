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

// Every node that can run alone in `layout` keeps to it, which leaves next to nothing to search.
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

// Where the optimum is not proven in time, the best single layout may be better than what was
// found: the plan is never worse than that, so these are solved whatever time is left.
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
      fmt::format("make_plan: the allowed candidates do not fit together: {}; allow more "
                  "candidates or transforms",
                  explain_infeasible(model)));
}

pbqp::Solution solve_within(const Model& model, const Encoding& encoding, const Resource& resource,
                            double time_limit_s) {
  const LimitedSolution limited =
      solve_limited(encoding.problem, budget_of(model, encoding, resource.limit), time_limit_s);
  if (!limited.leanest.empty()) {
    NoPlan error("make_plan: " + explain_scarcity(model, encoding, resource, limited.leanest));
    error.least_use = use_of(model, encoding, limited.leanest);
    throw error;
  }
  check_fits(model, limited.solution);
  TORCHALGO_CHECK(!limited.solution.choice.empty(),
                  "make_plan: no plan with {} of at most {} was found in {} s; raise time_limit_s",
                  resource.name, resource.limit, time_limit_s);
  return limited.solution;
}

pbqp::Solution solve_model(const Model& model, const Encoding& encoding,
                           const PlanOptions& options) {
  const double time_limit_s = options.time_limit_s;
  if (options.resource) return solve_within(model, encoding, *options.resource, time_limit_s);
  const pbqp::SolveOptions limits{.time_limit_s = time_limit_s,
                                  .with_marginals = options.with_regrets};
  pbqp::Solution solution = pbqp::solve(encoding.problem, limits);
  check_fits(model, solution);
  if (solution.status == pbqp::Status::kOptimal) return solution;
  solution = or_single_layout(model, encoding, time_limit_s, std::move(solution));
  TORCHALGO_CHECK(!solution.choice.empty(),
                  "make_plan: no plan was found in {} s; raise time_limit_s or allow fewer "
                  "candidates",
                  time_limit_s);
  return solution;
}

LayoutSet way_layouts(const PlanOptions& options) {
  LayoutSet set = options.layouts.empty() ? kLayoutSetCount - 1 : 0;
  for (const Layout layout : options.layouts) set |= set_of(layout);
  return set;
}

// The model of what is allowed, with the costs that it lacks.
struct PricedModel {
  Model model;
  std::set<CostKey> missing;
};

PricedModel price(const Graph& graph, const Candidates& candidates, const CandidateLists& allowed,
                  const std::vector<Candidate>& transforms, const CostTable& costs,
                  const PlanOptions& options) {
  std::set<CostKey> missing;
  PricedLists priced = price_candidates(allowed, costs, missing);
  if (options.resource) add_uses(candidates, *options.resource, priced);
  std::vector<ValueFlow> flow = trace_values(graph);
  const std::vector<LayoutSet> at_value = layouts_at_values(graph, flow, allowed);
  TransformCosts changes = price_transforms(
      flow, at_value, way_layouts(options), transforms, costs, missing,
      options.workspace_limit_bytes.value_or(std::numeric_limits<std::int64_t>::max()));
  return {{graph, std::move(flow), list_alternatives(graph, priced), std::move(changes)},
          std::move(missing)};
}

PlanResult plan_model(const Model& model, const PlanOptions& options) {
  const Encoding encoding = encode(model);
  const pbqp::Solution solution = solve_model(model, encoding, options);
  const std::set<CostKey> bounds = bounds_in_choice(model, encoding, solution.choice);
  PlanResult result{decode(model, encoding, solution), {bounds.begin(), bounds.end()}};
  if (options.resource) {
    result.use = use_of(model, encoding, solution.choice);
    return result;
  }
  if (options.with_regrets) add_regrets(model, encoding, solution, result.plan);
  if (options.with_certificate) {
    result.plan.certificate = pbqp::certificate_text(encoding.problem, solution);
  }
  return result;
}

}  // namespace
}  // namespace planner

PlanResult make_plan(const Graph& graph, const Candidates& candidates,
                     const std::vector<Candidate>& transforms, const CostTable& costs,
                     const PlanOptions& options) {
  const auto allowed = planner::allowed_candidates(graph, candidates, options);
  const auto [model, missing] =
      planner::price(graph, candidates, allowed, transforms, costs, options);
  if (!missing.empty()) return {{}, {missing.begin(), missing.end()}};
  return planner::plan_model(model, options);
}

std::string plan_problem_text(const Graph& graph, const Candidates& candidates,
                              const std::vector<Candidate>& transforms, const CostTable& costs,
                              const PlanOptions& options) {
  const auto allowed = planner::allowed_candidates(graph, candidates, options);
  const auto [model, missing] =
      planner::price(graph, candidates, allowed, transforms, costs, options);
  TORCHALGO_CHECK(missing.empty(), "plan_problem_text: {} costs are missing, the first of {} {}",
                  missing.size(), missing.begin()->primitive, missing.begin()->problem);
  return pbqp::to_text(planner::encode(model).problem);
}

PlanResult make_local_plan(const Graph& graph, const Candidates& candidates,
                           const std::vector<Candidate>& transforms, const CostTable& costs,
                           const PlanOptions& options) {
  const auto allowed = planner::allowed_candidates(graph, candidates, options);
  const auto [all, missing] =
      planner::price(graph, candidates, allowed, transforms, costs, options);
  if (!missing.empty()) return {{}, {missing.begin(), missing.end()}};
  const auto fastest = planner::own_fastest(graph, allowed, costs);
  const auto [model, none] = planner::price(graph, candidates, fastest, transforms, costs, options);
  return planner::plan_model(model, options);
}

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#include "planner/regrets.h"

#include <algorithm>
#include <chrono>

#include "pbqp/solve.h"

namespace torchalgo::planner {
namespace {

bool runs_otherwise(const PricedCandidate& option, const Primitive& chosen) {
  const Primitive& other = option.candidate->primitive;
  return other.name != chosen.name || other.src != chosen.src || other.dst != chosen.dst;
}

// The cheapest candidate of the alternative that is not the chosen primitive; null: none.
const PricedCandidate* best_other(const Alternative& alternative, const Primitive& chosen) {
  for (const PricedCandidate& option : alternative.options) {
    if (runs_otherwise(option, chosen)) return &option;
  }
  return nullptr;
}

// False if the node has no other choice.
bool forbid_primitive(const std::vector<Alternative>& alternatives, const Primitive& chosen,
                      std::vector<pbqp::Cost>& costs) {
  bool has_other = false;
  for (std::size_t a = 0; a < alternatives.size(); ++a) {
    const PricedCandidate* other = best_other(alternatives[a], chosen);
    if (other == nullptr) {
      costs[a] = pbqp::kForbidden;
    } else if (costs[a] != pbqp::kForbidden) {
      // The rest of the entry is what borders cost.
      costs[a] += other->cost.ticks - alternatives[a].options.front().cost.ticks;
      has_other = true;
    }
  }
  return has_other;
}

void add_regret(const Model& model, int node, int variable, pbqp::Problem& problem,
                double time_limit_s, Ticks optimum, PlanNode& planned) {
  const std::vector<Alternative>& alternatives = model.alternatives[node];
  std::vector<pbqp::Cost>& costs = problem.node_costs[variable];
  const std::vector<pbqp::Cost> saved = costs;
  if (forbid_primitive(alternatives, planned.primitive, costs)) {
    const pbqp::Solution solution = pbqp::solve(problem, {.time_limit_s = time_limit_s});
    if (solution.status == pbqp::Status::kOptimal) {
      const Alternative& runner_up = alternatives[solution.choice[variable]];
      planned.runner_up = to_string(best_other(runner_up, planned.primitive)->candidate->primitive);
      planned.regret = solution.cost - optimum;
    }
  }
  costs = saved;
}

}  // namespace

void add_regrets(const Model& model, const Encoding& encoding, double time_limit_s, Plan& plan) {
  if (plan.status != PlanStatus::kOptimal) return;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  pbqp::Problem problem = encoding.problem;
  auto planned = plan.nodes.begin();
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    if (encoding.variable[n] < 0) continue;
    const double left = time_limit_s - std::chrono::duration<double>(Clock::now() - start).count();
    if (left <= 0) return;
    if (planned->absorbed_by.empty()) {
      add_regret(model, static_cast<int>(n), encoding.variable[n], problem, left, plan.cost,
                 *planned);
    }
    ++planned;
  }
}

}  // namespace torchalgo::planner

// SPDX-License-Identifier: BSD-3-Clause
#include "planner/regrets.h"

namespace torchalgo::planner {
namespace {

bool runs_otherwise(const PricedCandidate& option, const Primitive& chosen) {
  const Primitive& other = option.candidate->primitive;
  return other.name != chosen.name || other.src != chosen.src || other.dst != chosen.dst;
}

// Returns the cheapest candidate of the alternative that is not the chosen primitive. Returns null
// if there is none.
const PricedCandidate* best_other(const Alternative& alternative, const Primitive& chosen) {
  for (const PricedCandidate& option : alternative.options) {
    if (runs_otherwise(option, chosen)) return &option;
  }
  return nullptr;
}

struct RunnerUp {
  const PricedCandidate* candidate = nullptr;  // null if there is none
  pbqp::Marginal plan;                         // the best plan with it
};

// Finds the runner-up. A marginal belongs to the alternative's cheapest candidate. With another
// candidate the plan costs the difference more.
RunnerUp find_runner_up(const std::vector<Alternative>& alternatives, const Primitive& chosen,
                        const std::vector<pbqp::Marginal>& marginals) {
  RunnerUp best;
  for (std::size_t a = 0; a < alternatives.size(); ++a) {
    const PricedCandidate* other = best_other(alternatives[a], chosen);
    if (other == nullptr || marginals[a].cost == pbqp::kForbidden) continue;
    const pbqp::Cost cost =
        marginals[a].cost + other->cost.ticks - alternatives[a].options.front().cost.ticks;
    const bool is_better = best.candidate == nullptr || cost < best.plan.cost ||
                           (cost == best.plan.cost && marginals[a].is_exact && !best.plan.is_exact);
    if (is_better) best = {other, {cost, marginals[a].is_exact}};
  }
  return best;
}

}  // namespace

void add_regrets(const Model& model, const Encoding& encoding, const pbqp::Solution& solution,
                 Plan& plan) {
  if (plan.status != PlanStatus::kOptimal) return;
  auto planned = plan.nodes.begin();
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const int variable = encoding.variable[n];
    if (variable < 0) continue;
    PlanNode& node = *planned++;
    if (!node.absorbed_by.empty()) continue;
    const RunnerUp best =
        find_runner_up(model.alternatives[n], node.primitive, solution.marginals[variable]);
    if (best.candidate == nullptr || !best.plan.is_exact) continue;
    node.runner_up = to_string(best.candidate->candidate->primitive);
    node.regret = best.plan.cost - plan.cost;
  }
}

}  // namespace torchalgo::planner

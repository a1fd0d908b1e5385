// SPDX-License-Identifier: BSD-3-Clause
#include "planner/constrained_solve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "pbqp/deadline.h"
#include "pbqp/instance.h"
#include "planner/label_elimination.h"
#include "planner/master_problem.h"

namespace torchalgo::planner {
namespace {

using pbqp::Cost;
using pbqp::kForbidden;
__extension__ using Wide = __int128;

constexpr Wide kRoom = Wide(1) << 62;       // for Lagrangians
constexpr Wide kSumLimit = kRoom / 4;       // of the largest costs and uses
constexpr std::int64_t kCellCap = 300'000;  // cells in all tables of one elimination
constexpr double kMaxScale = 1 << 30;       // of costs, which makes the multipliers integers
constexpr int kMaxIterations = 100;         // of the column generation for one subproblem

// Integer multipliers. The Lagrangian of a choice is cost * multiplier + sum of use * multiplier.
struct Multipliers {
  Cost cost = 1;
  ResourceUse use = {};
};

// One value per node, with its cost and its use of each resource.
struct EvaluatedChoice {
  Cost cost = kForbidden;
  ResourceUse use = {};
  std::vector<int> values;
};

// A node of the branch-and-bound tree: the problem without the values that are forbidden in
// `nodes`.
struct Subproblem {
  Cost bound = 0;  // no choice of it that keeps the limits costs less
  std::vector<std::vector<Cost>> nodes;
};

// The Lagrangian relaxation of a subproblem at the best multipliers found.
struct Relaxation {
  Multipliers multipliers;
  Cost least_lagrangian = 0;  // of all choices
  // The choices of the master problem's basis: some break a limit, some keep it. Empty if the time
  // was up before the relaxation had a choice.
  std::vector<std::vector<int>> basic_choices;
};

Cost clamp(Wide value) { return static_cast<Cost>(std::clamp(value, Wide(0), Wide(kForbidden))); }

Wide ceil_div(Wide a, Wide b) { return a > 0 ? (a + b - 1) / b : a / b; }

class ConstrainedSearch {
 public:
  ConstrainedSearch(const pbqp::Problem& problem, const Constraints& constraints,
                    double time_limit_s, std::int64_t label_cap)
      : problem_(problem),
        constraints_(constraints),
        deadline_(time_limit_s),
        label_cap_(label_cap) {
    pbqp::check_problem(problem);
    sum_largest();
    TORCHALGO_CHECK(
        total_cost_ + total_use_[0] + total_use_[1] <= kSumLimit,
        "TA2305 make_plan: the sums of costs and uses exceed 60 bits: give them in a coarser unit");
  }

  ConstrainedSolution run() {
    if (problem_.node_costs.empty()) return empty_solution();
    open_.push_back({0, problem_.node_costs});
    while (!open_.empty() && !deadline_.expired()) {
      std::pop_heap(open_.begin(), open_.end(), has_higher_bound);
      Subproblem subproblem = std::move(open_.back());
      open_.pop_back();
      if (subproblem.bound >= incumbent_.cost) {  // and so are the bounds of the others
        open_.clear();
        break;
      }
      ++subproblems_;
      explore(std::move(subproblem));
    }
    return finish();
  }

 private:
  static bool has_higher_bound(const Subproblem& a, const Subproblem& b) {
    return a.bound > b.bound;
  }

  ConstrainedSolution empty_solution() const {
    ConstrainedSolution result;
    result.solution = pbqp::solve(problem_);
    return result;
  }

  void sum_largest() {
    for (std::size_t i = 0; i < problem_.node_costs.size(); ++i) {
      TORCHALGO_ASSERT(constraints_.use[i].size() == problem_.node_costs[i].size());
      total_cost_ += largest(problem_.node_costs[i]);
      ResourceUse most = {};
      for (const ResourceUse& use : constraints_.use[i]) {
        for (std::size_t r = 0; r < kMostResources; ++r) most[r] = std::max(most[r], use[r]);
      }
      for (std::size_t r = 0; r < kMostResources; ++r) total_use_[r] += most[r];
    }
    for (const pbqp::Edge& edge : problem_.edges) total_cost_ += largest(edge.matrix);
  }

  static Wide largest(const std::vector<Cost>& values) {
    Wide most = 0;
    for (const Cost value : values) {
      if (value != kForbidden) most = std::max(most, Wide(value));
    }
    return most;
  }

  // Returns integers in the ratio 1 : multipliers_per_cost, as exactly as the room for sums allows.
  // Rounding costs no correctness: any multipliers give a valid bound.
  Multipliers to_integers(const std::array<double, kMostResources>& multipliers_per_cost) const {
    const auto room = static_cast<double>(kSumLimit);
    auto sum = static_cast<double>(total_cost_);
    for (std::size_t r = 0; r < kMostResources; ++r) {
      sum += multipliers_per_cost[r] * static_cast<double>(total_use_[r]);
    }
    const double scale = std::min(room / std::max(sum, 1.0), kMaxScale);
    Multipliers multipliers{std::max<Cost>(1, static_cast<Cost>(scale)), {}};
    for (std::size_t r = 0; r < kMostResources; ++r) {
      if (total_use_[r] == 0) continue;
      const double most = room / static_cast<double>(total_use_[r]);
      multipliers.use[r] = static_cast<Cost>(
          std::min(multipliers_per_cost[r] * static_cast<double>(multipliers.cost) + 0.5, most));
    }
    return multipliers;
  }

  template <typename Number>
  static Number lagrangian_value(const Multipliers& multipliers, Number cost,
                                 const ResourceUse& use) {
    Number sum = multipliers.cost * cost;
    for (std::size_t r = 0; r < kMostResources; ++r) sum += Number(multipliers.use[r]) * use[r];
    return sum;
  }

  // Returns the PBQP whose costs are the Lagrangians of the values.
  pbqp::Problem lagrangian_problem(const Subproblem& subproblem,
                                   const Multipliers& multipliers) const {
    pbqp::Problem lagrangian{subproblem.nodes, problem_.edges};
    for (std::size_t i = 0; i < subproblem.nodes.size(); ++i) {
      for (std::size_t a = 0; a < subproblem.nodes[i].size(); ++a) {
        Cost& cost = lagrangian.node_costs[i][a];
        if (cost != kForbidden) cost = lagrangian_value(multipliers, cost, constraints_.use[i][a]);
      }
    }
    if (multipliers.cost == 1) return lagrangian;
    for (pbqp::Edge& edge : lagrangian.edges) {
      for (Cost& cost : edge.matrix) {
        if (cost != kForbidden) cost *= multipliers.cost;
      }
    }
    return lagrangian;
  }

  pbqp::Solution solve(const Subproblem& subproblem, const Multipliers& multipliers,
                       bool with_marginals = false) {
    const double share = with_marginals ? 0.25 : 1.0;  // marginals only help
    return pbqp::solve(lagrangian_problem(subproblem, multipliers),
                       {.time_limit_s = share * deadline_.remaining(),
                        .with_marginals = with_marginals,
                        .proof_cap = 0});
  }

  EvaluatedChoice evaluate(const std::vector<int>& values) const {
    EvaluatedChoice choice{pbqp::evaluate(problem_, values), {}, values};
    for (std::size_t i = 0; i < values.size(); ++i)
      choice.use = choice.use + constraints_.use[i][values[i]];
    return choice;
  }

  bool keeps_limits(const EvaluatedChoice& choice) const {
    return is_within(choice.use, constraints_.limit);
  }

  // Evaluates a choice and makes it the incumbent if it is cheaper and keeps the limits.
  EvaluatedChoice record(const std::vector<int>& values) {
    EvaluatedChoice choice = evaluate(values);
    if (keeps_limits(choice) && choice.cost < incumbent_.cost) incumbent_ = choice;
    return choice;
  }

  // Returns a lower bound on the cost of the choices that keep the limits, if no choice has a
  // smaller Lagrangian than `least_lagrangian`.
  Cost cost_bound(const Multipliers& multipliers, Cost least_lagrangian) const {
    if (least_lagrangian == kForbidden) return kForbidden;
    const Wide of_limits = lagrangian_value<Wide>(multipliers, 0, constraints_.limit);
    const Cost bound = clamp(ceil_div(Wide(least_lagrangian) - of_limits, multipliers.cost));
    return bound > total_cost_ ? kForbidden : bound;  // no choice costs as much
  }

  void explore(Subproblem subproblem) {
    Relaxation relaxation;
    if (!solve_lagrangian_dual(subproblem, relaxation) || subproblem.bound >= incumbent_.cost)
      return;
    if (!deadline_.expired()) {
      fix_by_marginals(subproblem, relaxation);
      if (solve_by_elimination(subproblem, relaxation) || subproblem.bound >= incumbent_.cost)
        return;
    }
    if (deadline_.expired() || relaxation.basic_choices.empty()) return push(std::move(subproblem));
    branch(std::move(subproblem), relaxation);
  }

  void push(Subproblem subproblem) {
    open_.push_back(std::move(subproblem));
    std::push_heap(open_.begin(), open_.end(), has_higher_bound);
  }

  // Raises subproblem.bound by column generation. Returns false if the subproblem is solved.
  bool solve_lagrangian_dual(Subproblem& subproblem, Relaxation& relaxation) {
    const pbqp::Solution cheapest = solve(subproblem, {1, {}});
    subproblem.bound = std::max(subproblem.bound, cheapest.lower_bound);
    relaxation.least_lagrangian = cheapest.lower_bound;
    if (cheapest.lower_bound == kForbidden) return false;
    if (cheapest.choice.empty()) return true;
    const EvaluatedChoice first = record(cheapest.choice);
    if (keeps_limits(first)) return cheapest.status != pbqp::Status::kOptimal;
    MasterProblem master(constraints_.limit, static_cast<double>(total_cost_) + 1,
                         {static_cast<double>(total_use_[0]), static_cast<double>(total_use_[1])});
    master.add_column(first.cost, first.use, first.values);
    if (!add_least_use_columns(subproblem, master)) return false;
    for (int i = 0;
         i < kMaxIterations && !deadline_.expired() && subproblem.bound < incumbent_.cost; ++i) {
      if (!add_best_column(subproblem, relaxation, master)) break;
    }
    relaxation.basic_choices = master.basic_choices();
    return true;
  }

  // Adds, for each resource, the choice with the least use of it. Returns false if the least use of
  // a resource exceeds its limit.
  bool add_least_use_columns(const Subproblem& subproblem, MasterProblem& master) {
    for (std::size_t r = 0; r < kMostResources; ++r) {
      if (total_use_[r] == 0) continue;
      Multipliers multipliers{0, {}};
      multipliers.use[r] = 1;
      const pbqp::Solution least = solve(subproblem, multipliers);
      if (least.lower_bound > constraints_.limit[r]) {
        if (subproblems_ == 1) least_use_choice_ = least.choice;
        infeasible_resource_ = r;
        return false;
      }
      if (least.choice.empty()) continue;
      const EvaluatedChoice choice = record(least.choice);
      master.add_column(choice.cost, choice.use, choice.values);
    }
    return true;
  }

  // Solves the relaxation at the multipliers of the master problem, which are the best ones for its
  // columns, and adds the choice found. Returns false if that does not change the master problem.
  bool add_best_column(Subproblem& subproblem, Relaxation& relaxation, MasterProblem& master) {
    const Multipliers multipliers = to_integers(master.multipliers());
    const pbqp::Solution solution = solve(subproblem, multipliers);
    const Cost bound = cost_bound(multipliers, solution.lower_bound);
    if (bound >= subproblem.bound) {
      subproblem.bound = bound;
      relaxation.multipliers = multipliers;
      relaxation.least_lagrangian = solution.lower_bound;
    }
    if (solution.choice.empty()) return false;
    const EvaluatedChoice choice = record(solution.choice);
    return master.add_column(choice.cost, choice.use, choice.values);
  }

  // Forbids the values whose every choice has a bound of at least the incumbent's cost.
  void fix_by_marginals(Subproblem& subproblem, const Relaxation& relaxation) {
    const pbqp::Solution solution = solve(subproblem, relaxation.multipliers, true);
    for (std::size_t i = 0; i < solution.marginals.size(); ++i) {
      for (std::size_t a = 0; a < solution.marginals[i].size(); ++a) {
        if (cost_bound(relaxation.multipliers, solution.marginals[i][a].cost) >= incumbent_.cost)
          subproblem.nodes[i][a] = kForbidden;
      }
    }
  }

  // Finds the best choice of the subproblem by elimination with labels. Returns false if the tables
  // grow too large or the time is up.
  bool solve_by_elimination(const Subproblem& subproblem, const Relaxation& relaxation) {
    const pbqp::Restricted left =
        pbqp::drop_forbidden(pbqp::make_instance({subproblem.nodes, problem_.edges}));
    std::vector<std::vector<ResourceUse>> use(left.values.size());
    for (std::size_t i = 0; i < use.size(); ++i) {
      if (left.values[i].empty()) return true;
      for (const int a : left.values[i]) use[i].push_back(constraints_.use[i][a]);
    }
    const auto order = pbqp::find_order(left.instance, kCellCap, deadline_);
    if (!order) return false;
    // A choice that is cheaper than the incumbent and keeps the limits has at most this Lagrangian.
    const Wide most = incumbent_.cost == kForbidden
                          ? kRoom
                          : lagrangian_value<Wide>(relaxation.multipliers, incumbent_.cost - 1,
                                                   constraints_.limit);
    const LabelLimits limits{
        constraints_.limit, relaxation.multipliers.cost, relaxation.multipliers.use,
        clamp(std::min(most, kRoom) - relaxation.least_lagrangian), label_cap_};
    auto choice = eliminate_with_labels(left.instance, use, *order, limits, deadline_);
    if (!choice) return false;
    used_elimination_ = true;
    for (std::size_t i = 0; i < choice->size(); ++i) (*choice)[i] = left.values[i][(*choice)[i]];
    if (!choice->empty()) record(*choice);
    return true;
  }

  // Branches on a node whose values differ among the basic choices, and among these on the node and
  // resource with the widest range of use: half of the range goes to each side.
  void branch(Subproblem subproblem, const Relaxation& relaxation) {
    int node = -1;
    std::size_t resource = 0;
    std::pair<std::int64_t, std::int64_t> range;  // least and most use
    std::pair<bool, double> best{false, 0};
    for (std::size_t i = 0; i < subproblem.nodes.size(); ++i) {
      for (std::size_t r = 0; r < kMostResources; ++r) {
        const auto [least, most] = use_range(subproblem, i, r);
        if (most <= least) continue;
        const double share = static_cast<double>(most - least) / static_cast<double>(total_use_[r]);
        const std::pair rank{differs(relaxation, i), share};
        if (node >= 0 && rank <= best) continue;
        node = static_cast<int>(i);
        resource = r;
        range = {least, most};
        best = rank;
      }
    }
    if (node < 0) return push(std::move(subproblem));  // until the time is up
    Subproblem low_use = subproblem;
    const std::int64_t middle = range.first + (range.second - range.first) / 2;
    for (std::size_t a = 0; a < subproblem.nodes[node].size(); ++a) {
      const bool is_low_use = constraints_.use[node][a][resource] <= middle;
      (is_low_use ? subproblem : low_use).nodes[node][a] = kForbidden;
    }
    push(std::move(low_use));
    push(std::move(subproblem));
  }

  static bool differs(const Relaxation& relaxation, std::size_t node) {
    return std::any_of(
        relaxation.basic_choices.begin(), relaxation.basic_choices.end(),
        [&](const auto& choice) { return choice[node] != relaxation.basic_choices.front()[node]; });
  }

  std::pair<std::int64_t, std::int64_t> use_range(const Subproblem& subproblem, std::size_t node,
                                                  std::size_t resource) const {
    std::int64_t least = kForbidden, most = -1;
    for (std::size_t a = 0; a < subproblem.nodes[node].size(); ++a) {
      if (subproblem.nodes[node][a] == kForbidden) continue;
      least = std::min(least, constraints_.use[node][a][resource]);
      most = std::max(most, constraints_.use[node][a][resource]);
    }
    return {least, most};
  }

  ConstrainedSolution finish() {
    ConstrainedSolution result;
    result.least_use_choice = least_use_choice_;
    result.infeasible_resource = infeasible_resource_;
    pbqp::Solution& solution = result.solution;
    solution.lower_bound = incumbent_.cost;
    for (const Subproblem& subproblem : open_) {
      solution.lower_bound = std::min(solution.lower_bound, subproblem.bound);
    }
    solution.method = "Lagrangian sweep";  // these texts are in the files of plans
    if (used_elimination_) solution.method += ", elimination of (cost, use) pairs";
    if (subproblems_ > 1)
      solution.method += fmt::format(", branch and bound ({} parts)", subproblems_);
    if (incumbent_.values.empty()) {
      const bool is_proven = solution.lower_bound == kForbidden;
      solution.status = is_proven ? pbqp::Status::kInfeasible : pbqp::Status::kUnknown;
      return result;
    }
    solution.choice = incumbent_.values;
    solution.cost = incumbent_.cost;
    result.use = incumbent_.use;
    const bool is_proven = solution.cost == solution.lower_bound;
    solution.status = is_proven ? pbqp::Status::kOptimal : pbqp::Status::kFeasible;
    return result;
  }

  const pbqp::Problem& problem_;
  const Constraints& constraints_;
  const pbqp::Deadline deadline_;
  const std::int64_t label_cap_;
  Wide total_cost_ = 0;
  std::array<Wide, kMostResources> total_use_ = {};
  EvaluatedChoice incumbent_;
  std::vector<int> least_use_choice_;
  std::size_t infeasible_resource_ = 0;
  std::vector<Subproblem> open_;  // a heap, the lowest bound first
  int subproblems_ = 0;
  bool used_elimination_ = false;
};

}  // namespace

ConstrainedSolution solve_constrained(const pbqp::Problem& problem, const Constraints& constraints,
                                      double time_limit_s, std::int64_t label_cap) {
  return ConstrainedSearch(problem, constraints, time_limit_s, label_cap).run();
}

}  // namespace torchalgo::planner

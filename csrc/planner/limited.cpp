// SPDX-License-Identifier: BSD-3-Clause
#include "planner/limited.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>

#include "base/error.h"
#include "pbqp/deadline.h"
#include "pbqp/instance.h"
#include "planner/pair_elimination.h"

namespace torchalgo::planner {
namespace {

using pbqp::Cost;
using pbqp::kForbidden;
__extension__ using Wide = __int128;

constexpr Wide kRoom = Wide(1) << 62;
constexpr std::int64_t kCellCap = 300'000;  // of an elimination whose cells hold pairs

// Multipliers of cost and use in the Lagrangian.
struct Weights {
  Cost cost = 1;
  Cost use = 0;
};

struct Point {
  Cost cost = kForbidden;
  std::int64_t use = 0;
  std::vector<int> choice;
};

// The problem without the values whose cost is forbidden in `nodes`.
struct Part {
  Cost bound = 0;
  std::vector<std::vector<Cost>> nodes;
};

// What the sweep over multipliers found of a part.
struct Sweep {
  Weights weights;
  Cost lagrangian = 0;  // no choice has a smaller one
  Point over, under;    // the cheapest choice on either side of the limit that was met
};

Cost clamp(Wide value) { return static_cast<Cost>(std::clamp(value, Wide(0), Wide(kForbidden))); }

Wide ceil_div(Wide a, Wide b) { return a > 0 ? (a + b - 1) / b : a / b; }

class Search {
 public:
  Search(const pbqp::Problem& problem, const Budget& budget, double time_limit_s,
         std::int64_t pair_cap)
      : problem_(problem), budget_(budget), deadline_(time_limit_s), pair_cap_(pair_cap) {
    pbqp::check_problem(problem);
    add_totals();
    TORCHALGO_CHECK(total_cost_ + total_use_ <= kRoom / 4,
                    "make_plan: the sums of costs and uses exceed 60 bits; use a coarser unit");
  }

  LimitedSolution run() {
    if (problem_.node_costs.empty()) return empty_solution();
    open_.push_back({0, problem_.node_costs});
    while (!open_.empty() && !deadline_.expired()) {
      std::pop_heap(open_.begin(), open_.end(), is_later);
      Part part = std::move(open_.back());
      open_.pop_back();
      if (part.bound >= best_.cost) {  // so are all that are left
        open_.clear();
        break;
      }
      ++parts_;
      explore(std::move(part));
    }
    return finish();
  }

 private:
  static bool is_later(const Part& a, const Part& b) { return a.bound > b.bound; }

  LimitedSolution empty_solution() const {
    LimitedSolution result;
    result.solution = pbqp::solve(problem_);
    return result;
  }

  void add_totals() {
    for (std::size_t i = 0; i < problem_.node_costs.size(); ++i) {
      TORCHALGO_ASSERT(budget_.use[i].size() == problem_.node_costs[i].size());
      total_cost_ += largest(problem_.node_costs[i]);
      total_use_ += largest(budget_.use[i]);
    }
    for (const pbqp::Edge& edge : problem_.edges) total_cost_ += largest(edge.matrix);
  }

  static Wide largest(const std::vector<std::int64_t>& values) {
    Wide most = 0;
    for (const std::int64_t value : values) {
      if (value != kForbidden) most = std::max(most, Wide(value));
    }
    return most;
  }

  // The ratio as exactly as the room for sums allows; any ratio gives a valid bound.
  Weights fit(Cost cost, Cost use) const {
    while (cost * total_cost_ + use * total_use_ > kRoom) {
      if (cost == 1) return {1, static_cast<Cost>((kRoom - total_cost_) / total_use_)};
      cost = std::max<Cost>(1, cost / 2);
      use /= 2;
    }
    return {cost, use};
  }

  pbqp::Problem weigh(const Part& part, const Weights& weights) const {
    pbqp::Problem weighed{part.nodes, problem_.edges};
    for (std::size_t i = 0; i < part.nodes.size(); ++i) {
      for (std::size_t a = 0; a < part.nodes[i].size(); ++a) {
        Cost& cost = weighed.node_costs[i][a];
        if (cost != kForbidden) cost = weights.cost * cost + weights.use * budget_.use[i][a];
      }
    }
    if (weights.cost == 1) return weighed;
    for (pbqp::Edge& edge : weighed.edges) {
      for (Cost& cost : edge.matrix) {
        if (cost != kForbidden) cost *= weights.cost;
      }
    }
    return weighed;
  }

  pbqp::Solution solve(const Part& part, const Weights& weights, bool with_marginals = false) {
    const double share = with_marginals ? 0.25 : 1.0;  // marginals only help
    return pbqp::solve(weigh(part, weights), {.time_limit_s = share * deadline_.remaining(),
                                              .with_marginals = with_marginals,
                                              .proof_cap = 0});
  }

  Point point_of(const std::vector<int>& choice) const {
    Point point{pbqp::evaluate(problem_, choice), 0, choice};
    for (std::size_t i = 0; i < choice.size(); ++i) point.use += budget_.use[i][choice[i]];
    return point;
  }

  bool fits(const Point& point) const { return point.use <= budget_.limit; }

  Point offer(const std::vector<int>& choice) {
    Point point = point_of(choice);
    if (fits(point) && point.cost < best_.cost) best_ = point;
    return point;
  }

  // What a Lagrangian that no choice undercuts says of the cost of choices within the limit.
  Cost cost_bound(const Weights& weights, Cost lagrangian) const {
    if (lagrangian == kForbidden) return kForbidden;
    return clamp(ceil_div(Wide(lagrangian) - Wide(weights.use) * budget_.limit, weights.cost));
  }

  void explore(Part part) {
    Sweep sweep;
    if (!sweep_weights(part, sweep) || part.bound >= best_.cost) return;
    if (!deadline_.expired()) {
      drop_values(part, sweep);
      if (eliminate(part, sweep) || part.bound >= best_.cost) return;
    }
    if (deadline_.expired() || sweep.under.choice.empty()) return push(std::move(part));
    split(std::move(part), sweep);
  }

  void push(Part part) {
    open_.push_back(std::move(part));
    std::push_heap(open_.begin(), open_.end(), is_later);
  }

  // Raises part.bound; false if nothing is left to search in the part.
  bool sweep_weights(Part& part, Sweep& sweep) {
    const pbqp::Solution cheapest = solve(part, {1, 0});
    part.bound = std::max(part.bound, cheapest.lower_bound);
    sweep.lagrangian = cheapest.lower_bound;
    if (cheapest.lower_bound == kForbidden) return false;
    if (cheapest.choice.empty()) return true;
    sweep.over = offer(cheapest.choice);
    if (fits(sweep.over)) return cheapest.status != pbqp::Status::kOptimal;
    const pbqp::Solution leanest = solve(part, {0, 1});
    if (!leanest.choice.empty()) sweep.under = offer(leanest.choice);
    if (leanest.lower_bound > budget_.limit) {
      if (parts_ == 1) leanest_ = leanest.choice;
      return false;
    }
    if (sweep.under.choice.empty() || !fits(sweep.under)) {
      sweep.under = {};
      return true;
    }
    while (!deadline_.expired() && part.bound < best_.cost && improve(part, sweep)) {
    }
    return true;
  }

  // One multiplier: the one at which both sides weigh the same. False if nothing is gained.
  bool improve(Part& part, Sweep& sweep) {
    if (sweep.under.cost <= sweep.over.cost) return false;
    const Weights weights =
        fit(sweep.over.use - sweep.under.use, sweep.under.cost - sweep.over.cost);
    const pbqp::Solution solution = solve(part, weights);
    const Cost bound = cost_bound(weights, solution.lower_bound);
    if (bound >= part.bound) {
      part.bound = bound;
      sweep.weights = weights;
      sweep.lagrangian = solution.lower_bound;
    }
    if (solution.choice.empty()) return false;
    const Point point = offer(solution.choice);
    const auto weight = [&](const Point& p) { return weights.cost * p.cost + weights.use * p.use; };
    const bool is_lower = weight(point) < std::min(weight(sweep.over), weight(sweep.under));
    (fits(point) ? sweep.under : sweep.over) = point;
    return is_lower;
  }

  // Values that no better choice has.
  void drop_values(Part& part, const Sweep& sweep) {
    const pbqp::Solution solution = solve(part, sweep.weights, true);
    for (std::size_t i = 0; i < solution.marginals.size(); ++i) {
      for (std::size_t a = 0; a < solution.marginals[i].size(); ++a) {
        if (cost_bound(sweep.weights, solution.marginals[i][a].cost) >= best_.cost)
          part.nodes[i][a] = kForbidden;
      }
    }
  }

  // Whether the part is done: its best choice is known, or it has none that matters.
  bool eliminate(const Part& part, const Sweep& sweep) {
    const pbqp::Restricted left =
        pbqp::drop_forbidden(pbqp::make_instance({part.nodes, problem_.edges}));
    std::vector<std::vector<std::int64_t>> use(left.values.size());
    for (std::size_t i = 0; i < use.size(); ++i) {
      if (left.values[i].empty()) return true;
      for (const int a : left.values[i]) use[i].push_back(budget_.use[i][a]);
    }
    const auto order = pbqp::find_order(left.instance, kCellCap, deadline_);
    if (!order) return false;
    // No better choice has a Lagrangian above this.
    const Wide most = best_.cost == kForbidden ? kRoom
                                               : Wide(sweep.weights.cost) * (best_.cost - 1) +
                                                     Wide(sweep.weights.use) * budget_.limit;
    const PairLimits limits{budget_.limit, sweep.weights.cost, sweep.weights.use,
                            clamp(std::min(most, kRoom) - sweep.lagrangian), pair_cap_};
    auto choice = eliminate_pairs(left.instance, use, *order, limits, deadline_);
    if (!choice) return false;
    has_eliminated_ = true;
    for (std::size_t i = 0; i < choice->size(); ++i) (*choice)[i] = left.values[i][(*choice)[i]];
    if (!choice->empty()) offer(*choice);
    return true;
  }

  // Branches on the node that tells the two sides apart most, at the middle of its uses.
  void split(Part part, const Sweep& sweep) {
    int node = -1;
    std::pair<std::int64_t, std::int64_t> range;  // least and most use
    std::pair<bool, std::int64_t> best{false, 0};
    for (std::size_t i = 0; i < part.nodes.size(); ++i) {
      const auto [least, most] = use_range(part, static_cast<int>(i));
      const std::pair rank{sweep.over.choice[i] != sweep.under.choice[i], most - least};
      if (most <= least || (node >= 0 && rank <= best)) continue;
      node = static_cast<int>(i);
      range = {least, most};
      best = rank;
    }
    if (node < 0) return push(std::move(part));  // as open as before, but time goes on
    Part lean = part;
    const std::int64_t middle = range.first + (range.second - range.first) / 2;
    for (std::size_t a = 0; a < part.nodes[node].size(); ++a) {
      (budget_.use[node][a] <= middle ? part : lean).nodes[node][a] = kForbidden;
    }
    push(std::move(lean));
    push(std::move(part));
  }

  std::pair<std::int64_t, std::int64_t> use_range(const Part& part, int node) const {
    std::int64_t least = kForbidden, most = -1;
    for (std::size_t a = 0; a < part.nodes[node].size(); ++a) {
      if (part.nodes[node][a] == kForbidden) continue;
      least = std::min(least, budget_.use[node][a]);
      most = std::max(most, budget_.use[node][a]);
    }
    return {least, most};
  }

  LimitedSolution finish() {
    LimitedSolution result;
    result.leanest = leanest_;
    pbqp::Solution& solution = result.solution;
    solution.lower_bound = best_.cost;
    for (const Part& part : open_) {
      solution.lower_bound = std::min(solution.lower_bound, part.bound);
    }
    solution.method = "Lagrangian sweep";
    if (has_eliminated_) solution.method += ", elimination of (cost, use) pairs";
    if (parts_ > 1) solution.method += fmt::format(", branch and bound ({} parts)", parts_);
    if (best_.choice.empty()) {
      const bool is_proven = solution.lower_bound == kForbidden;
      solution.status = is_proven ? pbqp::Status::kInfeasible : pbqp::Status::kUnknown;
      return result;
    }
    solution.choice = best_.choice;
    solution.cost = best_.cost;
    result.use = best_.use;
    const bool is_proven = solution.cost == solution.lower_bound;
    solution.status = is_proven ? pbqp::Status::kOptimal : pbqp::Status::kFeasible;
    return result;
  }

  const pbqp::Problem& problem_;
  const Budget& budget_;
  const pbqp::Deadline deadline_;
  const std::int64_t pair_cap_;
  Wide total_cost_ = 0, total_use_ = 0;
  Point best_;
  std::vector<int> leanest_;
  std::vector<Part> open_;  // a heap, the lowest bound first
  int parts_ = 0;
  bool has_eliminated_ = false;
};

}  // namespace

LimitedSolution solve_limited(const pbqp::Problem& problem, const Budget& budget,
                              double time_limit_s, std::int64_t pair_cap) {
  return Search(problem, budget, time_limit_s, pair_cap).run();
}

}  // namespace torchalgo::planner

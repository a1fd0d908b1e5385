// SPDX-License-Identifier: BSD-3-Clause
#include "planner/limited.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "pbqp/deadline.h"
#include "pbqp/instance.h"
#include "planner/multipliers.h"
#include "planner/pair_elimination.h"

namespace torchalgo::planner {
namespace {

using pbqp::Cost;
using pbqp::kForbidden;
__extension__ using Wide = __int128;

constexpr Wide kRoom = Wide(1) << 62;
constexpr std::int64_t kCellCap = 300'000;  // of an elimination whose cells hold pairs
constexpr double kMostScale = 1 << 30;      // of costs, so that their multipliers are integers
constexpr int kMostPrices = 100;            // multipliers that are tried per part

// Multipliers of cost and uses in the Lagrangian.
struct Weights {
  Cost cost = 1;
  Uses use = {};
};

struct Point {
  Cost cost = kForbidden;
  Uses use = {};
  std::vector<int> choice;
};

// The problem without the values whose cost is forbidden in `nodes`.
struct Part {
  Cost bound = 0;
  std::vector<std::vector<Cost>> nodes;
};

// What the search for multipliers found of a part.
struct Sweep {
  Weights weights;
  Cost lagrangian = 0;                    // no choice has a smaller one
  std::vector<std::vector<int>> mixture;  // choices on either side of the limits; empty: none seen
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
    TORCHALGO_CHECK(total_cost_ + total_use_[0] + total_use_[1] <= kRoom / 4,
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
      Uses most = {};
      for (const Uses& use : budget_.use[i]) {
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

  // Integers in the ratio 1 : prices, as exactly as the room for sums allows; any ratio gives a
  // valid bound.
  Weights fit(const std::array<double, kMostResources>& prices) const {
    const auto room = static_cast<double>(kRoom / 4);
    auto sum = static_cast<double>(total_cost_);
    for (std::size_t r = 0; r < kMostResources; ++r) {
      sum += prices[r] * static_cast<double>(total_use_[r]);
    }
    const double scale = std::min(room / std::max(sum, 1.0), kMostScale);
    Weights weights{std::max<Cost>(1, static_cast<Cost>(scale)), {}};
    for (std::size_t r = 0; r < kMostResources; ++r) {
      if (total_use_[r] == 0) continue;
      const double most = room / static_cast<double>(total_use_[r]);
      weights.use[r] =
          static_cast<Cost>(std::min(prices[r] * static_cast<double>(weights.cost) + 0.5, most));
    }
    return weights;
  }

  template <typename Number>
  static Number weighed_sum(const Weights& weights, Number cost, const Uses& use) {
    Number sum = weights.cost * cost;
    for (std::size_t r = 0; r < kMostResources; ++r) sum += Number(weights.use[r]) * use[r];
    return sum;
  }

  pbqp::Problem weigh(const Part& part, const Weights& weights) const {
    pbqp::Problem weighed{part.nodes, problem_.edges};
    for (std::size_t i = 0; i < part.nodes.size(); ++i) {
      for (std::size_t a = 0; a < part.nodes[i].size(); ++a) {
        Cost& cost = weighed.node_costs[i][a];
        if (cost != kForbidden) cost = weighed_sum(weights, cost, budget_.use[i][a]);
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
    Point point{pbqp::evaluate(problem_, choice), {}, choice};
    for (std::size_t i = 0; i < choice.size(); ++i)
      point.use = point.use + budget_.use[i][choice[i]];
    return point;
  }

  bool fits(const Point& point) const { return is_within(point.use, budget_.limit); }

  Point offer(const std::vector<int>& choice) {
    Point point = point_of(choice);
    if (fits(point) && point.cost < best_.cost) best_ = point;
    return point;
  }

  // What a Lagrangian that no choice undercuts says of the cost of choices within the limit.
  Cost cost_bound(const Weights& weights, Cost lagrangian) const {
    if (lagrangian == kForbidden) return kForbidden;
    const Wide room = weighed_sum<Wide>(weights, 0, budget_.limit);
    const Cost bound = clamp(ceil_div(Wide(lagrangian) - room, weights.cost));
    return bound > total_cost_ ? kForbidden : bound;  // no choice costs as much
  }

  void explore(Part part) {
    Sweep sweep;
    if (!sweep_weights(part, sweep) || part.bound >= best_.cost) return;
    if (!deadline_.expired()) {
      drop_values(part, sweep);
      if (eliminate(part, sweep) || part.bound >= best_.cost) return;
    }
    if (deadline_.expired() || sweep.mixture.empty()) return push(std::move(part));
    split(std::move(part), sweep);
  }

  void push(Part part) {
    open_.push_back(std::move(part));
    std::push_heap(open_.begin(), open_.end(), is_later);
  }

  // Raises part.bound; false if nothing is left to search in the part.
  bool sweep_weights(Part& part, Sweep& sweep) {
    const pbqp::Solution cheapest = solve(part, {1, {}});
    part.bound = std::max(part.bound, cheapest.lower_bound);
    sweep.lagrangian = cheapest.lower_bound;
    if (cheapest.lower_bound == kForbidden) return false;
    if (cheapest.choice.empty()) return true;
    const Point over = offer(cheapest.choice);
    if (fits(over)) return cheapest.status != pbqp::Status::kOptimal;
    Multipliers multipliers(
        budget_.limit, static_cast<double>(total_cost_) + 1,
        {static_cast<double>(total_use_[0]), static_cast<double>(total_use_[1])});
    multipliers.add(over.cost, over.use, over.choice);
    if (!add_leanest(part, multipliers)) return false;
    for (int i = 0; i < kMostPrices && !deadline_.expired() && part.bound < best_.cost; ++i) {
      if (!improve(part, sweep, multipliers)) break;
    }
    sweep.mixture = multipliers.mixture();
    return true;
  }

  // The choices that take least of one resource each. False if even such a one takes too much.
  bool add_leanest(const Part& part, Multipliers& multipliers) {
    for (std::size_t r = 0; r < kMostResources; ++r) {
      if (total_use_[r] == 0) continue;
      Weights weights{0, {}};
      weights.use[r] = 1;
      const pbqp::Solution leanest = solve(part, weights);
      if (leanest.lower_bound > budget_.limit[r]) {
        if (parts_ == 1) leanest_ = leanest.choice;
        scarce_ = r;
        return false;
      }
      if (leanest.choice.empty()) continue;
      const Point point = offer(leanest.choice);
      multipliers.add(point.cost, point.use, point.choice);
    }
    return true;
  }

  // One set of multipliers: the best for the choices that are known. False if nothing is gained.
  bool improve(Part& part, Sweep& sweep, Multipliers& multipliers) {
    const Weights weights = fit(multipliers.prices());
    const pbqp::Solution solution = solve(part, weights);
    const Cost bound = cost_bound(weights, solution.lower_bound);
    if (bound >= part.bound) {
      part.bound = bound;
      sweep.weights = weights;
      sweep.lagrangian = solution.lower_bound;
    }
    if (solution.choice.empty()) return false;
    const Point point = offer(solution.choice);
    return multipliers.add(point.cost, point.use, point.choice);
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
    std::vector<std::vector<Uses>> use(left.values.size());
    for (std::size_t i = 0; i < use.size(); ++i) {
      if (left.values[i].empty()) return true;
      for (const int a : left.values[i]) use[i].push_back(budget_.use[i][a]);
    }
    const auto order = pbqp::find_order(left.instance, kCellCap, deadline_);
    if (!order) return false;
    // No better choice has a Lagrangian above this.
    const Wide most = best_.cost == kForbidden
                          ? kRoom
                          : weighed_sum<Wide>(sweep.weights, best_.cost - 1, budget_.limit);
    const PairLimits limits{budget_.limit, sweep.weights.cost, sweep.weights.use,
                            clamp(std::min(most, kRoom) - sweep.lagrangian), pair_cap_};
    auto choice = eliminate_pairs(left.instance, use, *order, limits, deadline_);
    if (!choice) return false;
    has_eliminated_ = true;
    for (std::size_t i = 0; i < choice->size(); ++i) (*choice)[i] = left.values[i][(*choice)[i]];
    if (!choice->empty()) offer(*choice);
    return true;
  }

  // Branches on the node and resource that tell the mixed choices apart most, at the middle of the
  // node's uses.
  void split(Part part, const Sweep& sweep) {
    int node = -1;
    std::size_t resource = 0;
    std::pair<std::int64_t, std::int64_t> range;  // least and most use
    std::pair<bool, double> best{false, 0};
    for (std::size_t i = 0; i < part.nodes.size(); ++i) {
      for (std::size_t r = 0; r < kMostResources; ++r) {
        const auto [least, most] = use_range(part, i, r);
        if (most <= least) continue;
        const double share = static_cast<double>(most - least) / static_cast<double>(total_use_[r]);
        const std::pair rank{is_mixed(sweep, i), share};
        if (node >= 0 && rank <= best) continue;
        node = static_cast<int>(i);
        resource = r;
        range = {least, most};
        best = rank;
      }
    }
    if (node < 0) return push(std::move(part));  // as open as before, but time goes on
    Part lean = part;
    const std::int64_t middle = range.first + (range.second - range.first) / 2;
    for (std::size_t a = 0; a < part.nodes[node].size(); ++a) {
      const bool is_lean = budget_.use[node][a][resource] <= middle;
      (is_lean ? part : lean).nodes[node][a] = kForbidden;
    }
    push(std::move(lean));
    push(std::move(part));
  }

  static bool is_mixed(const Sweep& sweep, std::size_t node) {
    return std::any_of(sweep.mixture.begin(), sweep.mixture.end(), [&](const auto& choice) {
      return choice[node] != sweep.mixture.front()[node];
    });
  }

  std::pair<std::int64_t, std::int64_t> use_range(const Part& part, std::size_t node,
                                                  std::size_t resource) const {
    std::int64_t least = kForbidden, most = -1;
    for (std::size_t a = 0; a < part.nodes[node].size(); ++a) {
      if (part.nodes[node][a] == kForbidden) continue;
      least = std::min(least, budget_.use[node][a][resource]);
      most = std::max(most, budget_.use[node][a][resource]);
    }
    return {least, most};
  }

  LimitedSolution finish() {
    LimitedSolution result;
    result.leanest = leanest_;
    result.scarce = scarce_;
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
  Wide total_cost_ = 0;
  std::array<Wide, kMostResources> total_use_ = {};
  Point best_;
  std::vector<int> leanest_;
  std::size_t scarce_ = 0;
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

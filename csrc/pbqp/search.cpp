// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/search.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <queue>
#include <utility>

#include "pbqp/bound.h"
#include "pbqp/eliminate.h"
#include "pbqp/reduce.h"

namespace torchalgo::pbqp {
namespace {

constexpr int kRootPasses = 200, kPasses = 50;
constexpr int kTrials = 6;  // at the root, of solving with the most promising values only
constexpr int kMaxRounds = 8;
constexpr double kEnoughPruned = 0.02;  // of the values, for another round

/// A part of the search space: the values still allowed, all nodes' in one list.
struct Subproblem {
  Cost bound = 0;
  int depth = 0;
  int serial = 0;
  std::vector<bool> allowed;
};

struct Later {  // for a queue with the lowest bound first, then the deepest, then the oldest
  bool operator()(const Subproblem& a, const Subproblem& b) const {
    if (a.bound != b.bound) return a.bound > b.bound;
    if (a.depth != b.depth) return a.depth < b.depth;
    return a.serial > b.serial;
  }
};

class Search {
 public:
  Search(const Instance& instance, std::int64_t table_cap, const Deadline& deadline)
      : instance_(instance), table_cap_(table_cap), deadline_(deadline) {
    offsets_.push_back(0);
    for (const auto& costs : instance.nodes)
      offsets_.push_back(offsets_.back() + static_cast<int>(costs.size()));
    limit_ = add(largest_cost(instance), 1);
  }

  SearchResult run() {
    open_.push({instance_.constant, 0, 0, std::vector<bool>(offsets_.back(), true)});
    while (!open_.empty() && open_.top().bound < limit_) {
      if (deadline_.expired() && result_.branches > 0) break;
      Subproblem next = open_.top();
      open_.pop();
      ++result_.branches;
      expand(std::move(next));
    }
    const bool proven = open_.empty() || open_.top().bound >= limit_;
    result_.lower_bound = proven ? result_.cost : std::min(open_.top().bound, result_.cost);
    return std::move(result_);
  }

 private:
  int position(const Reduction& reduction, int core_node, int core_value) const {
    const int node = reduction.core_nodes[core_node];
    return offsets_[node] + reduction.values[node][reduction.core_values[core_node][core_value]];
  }

  Reduction reduce_allowed(const std::vector<bool>& allowed) const {
    Values kept(instance_.nodes.size());
    for (std::size_t i = 0; i < kept.size(); ++i)
      for (int a = 0; a < offsets_[i + 1] - offsets_[i]; ++a)
        if (allowed[offsets_[i] + a]) kept[i].push_back(a);
    return reduce(restrict_values(instance_, std::move(kept)));
  }

  void offer(const std::vector<int>& choice) {
    const Cost cost = cost_of(instance_, choice);
    if (cost >= result_.cost) return;
    result_.cost = cost;
    result_.choice = choice;
    limit_ = std::min(limit_, cost);
  }

  /// The optimum of the subproblem (kForbidden: none) if reductions or elimination reach it.
  std::optional<Cost> solve_exactly(const Reduction& reduction) {
    if (reduction.infeasible) return kForbidden;
    const auto order = find_order(reduction.core, table_cap_);
    if (!order) return std::nullopt;
    const Exact exact = eliminate(reduction.core, *order);
    if (!order->nodes.empty()) result_.width = std::max(result_.width, order->width);
    if (exact.cost != kForbidden) offer(lift(reduction, exact.choice));
    return exact.cost;
  }

  void expand(Subproblem sub) {
    for (int round = 0;; ++round) {
      const Reduction reduction = reduce_allowed(sub.allowed);
      if (solve_exactly(reduction)) return;
      Bound bound =
          find_bound(reduction.core, sub.depth == 0 ? kRootPasses : kPasses, limit_, deadline_);
      if (!bound.choice.empty()) offer(lift(reduction, bound.choice));
      sub.bound = std::max(sub.bound, bound.lower_bound);
      if (sub.bound >= limit_) return;
      double pruned = prune(reduction, bound, sub);
      if (pruned < kEnoughPruned && sub.depth == 0) {
        solve_promising(reduction, bound, sub);
        if (sub.bound >= limit_) return;
        pruned = prune(reduction, bound, sub);
      }
      if (pruned < kEnoughPruned || round == kMaxRounds || deadline_.expired()) {
        branch(reduction, bound, sub);
        return;
      }
    }
  }

  /// Takes out the values that cannot beat the best choice; returns their share.
  double prune(const Reduction& reduction, const Bound& bound, Subproblem& sub) const {
    std::size_t values = 0, pruned = 0;
    for (std::size_t i = 0; i < bound.value_bounds.size(); ++i)
      for (std::size_t a = 0; a < bound.value_bounds[i].size(); ++a) {
        ++values;
        if (bound.value_bounds[i][a] < limit_) continue;
        const int at = position(reduction, static_cast<int>(i), static_cast<int>(a));
        pruned += sub.allowed[at];
        sub.allowed[at] = false;
      }
    return static_cast<double>(pruned) / static_cast<double>(values);
  }

  /// Solves with the values whose bound is below a threshold only. A choice with any other value
  /// costs at least the threshold, so the result also raises the subproblem's bound.
  void solve_promising(const Reduction& reduction, const Bound& bound, Subproblem& sub) {
    std::vector<Cost> thresholds;
    for (const auto& bounds : bound.value_bounds)
      for (Cost value : bounds)
        if (value > sub.bound && value < limit_) thresholds.push_back(value);
    std::sort(thresholds.begin(), thresholds.end());
    thresholds.erase(std::unique(thresholds.begin(), thresholds.end()), thresholds.end());
    std::size_t low = 0, high = thresholds.size();
    for (int trial = 0; trial < kTrials && low < high; ++trial) {
      if (deadline_.expired()) return;
      const std::size_t middle = low + (high - low) / 2;
      const Cost threshold = thresholds[middle];
      if (threshold >= limit_) {
        high = middle;
        continue;
      }
      const auto cost = solve_exactly(reduce_allowed(below(reduction, bound, sub, threshold)));
      if (!cost) {
        high = middle;
        continue;
      }
      low = middle + 1;
      sub.bound = std::max(sub.bound, std::min(*cost, threshold));
      if (sub.bound >= limit_) return;
    }
  }

  std::vector<bool> below(const Reduction& reduction, const Bound& bound, const Subproblem& sub,
                          Cost threshold) const {
    std::vector<bool> allowed = sub.allowed;
    for (std::size_t i = 0; i < bound.value_bounds.size(); ++i)
      for (std::size_t a = 0; a < bound.value_bounds[i].size(); ++a)
        if (bound.value_bounds[i][a] >= threshold)
          allowed[position(reduction, static_cast<int>(i), static_cast<int>(a))] = false;
    return allowed;
  }

  /// Splits off the most promising value of the node that joins most.
  void branch(const Reduction& reduction, const Bound& bound, const Subproblem& sub) {
    const int node = branching_node(reduction.core);
    const auto& bounds = bound.value_bounds[node];
    const int best =
        static_cast<int>(std::min_element(bounds.begin(), bounds.end()) - bounds.begin());
    Subproblem with = sub, without = sub;
    Cost rest = kForbidden;
    for (int a = 0; a < static_cast<int>(bounds.size()); ++a) {
      (a == best ? without : with).allowed[position(reduction, node, a)] = false;
      if (a != best) rest = std::min(rest, bounds[a]);
    }
    push(std::move(with), bounds[best]);
    push(std::move(without), rest);
  }

  void push(Subproblem sub, Cost bound) {
    sub.bound = std::max(sub.bound, bound);
    if (sub.bound >= limit_) return;
    ++sub.depth;
    sub.serial = ++serial_;
    open_.push(std::move(sub));
  }

  static int branching_node(const Instance& core) {
    std::vector<int> degree(core.nodes.size(), 0);
    for (const PairTable& pair : core.pairs) ++degree[pair.u], ++degree[pair.v];
    int best = 0;
    double most = -1;
    for (std::size_t i = 0; i < core.nodes.size(); ++i) {
      const double weight = degree[i] * std::log(static_cast<double>(core.nodes[i].size()));
      if (weight <= most) continue;
      most = weight;
      best = static_cast<int>(i);
    }
    return best;
  }

  const Instance& instance_;
  std::int64_t table_cap_;
  const Deadline& deadline_;
  std::vector<int> offsets_;  // of each node's values in Subproblem::allowed
  Cost limit_;                // only choices cheaper than this are still looked for
  int serial_ = 0;
  std::priority_queue<Subproblem, std::vector<Subproblem>, Later> open_;
  SearchResult result_;
};

}  // namespace

SearchResult search(const Instance& instance, std::int64_t table_cap, const Deadline& deadline) {
  return Search(instance, table_cap, deadline).run();
}

}  // namespace torchalgo::pbqp

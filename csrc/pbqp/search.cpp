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

using Kind = ProofStep::Kind;

constexpr int kRootPasses = 200, kPasses = 50;
constexpr int kTrials = 6;  // trials to solve the root with the most promising values only
constexpr int kMaxRounds = 8;
constexpr double kEnoughPruned = 0.02;  // share of the values that justifies another round

/// A part of the search space. `allowed` lists the values of all nodes that are still allowed.
struct Subproblem {
  Cost bound = 0;
  int depth = 0;
  int serial = 0;
  int block = 0;  // of the proof
  std::vector<bool> allowed;
};

struct Later {  // orders a queue: lowest bound, then deepest, then oldest
  bool operator()(const Subproblem& a, const Subproblem& b) const {
    if (a.bound != b.bound) return a.bound > b.bound;
    if (a.depth != b.depth) return a.depth < b.depth;
    return a.serial > b.serial;
  }
};

}  // namespace

class Search::Steps {
 public:
  Steps(const Instance& instance, SearchLimits limits)
      : instance_(instance), limits_(std::move(limits)), proof_(limits_.proof_room) {
    offsets_.push_back(0);
    for (const auto& costs : instance.nodes)
      offsets_.push_back(offsets_.back() + static_cast<int>(costs.size()));
    limit_ = add(largest_cost(instance), 1);
    open_.push(
        {instance_.constant, 0, 0, proof_.add_block(), std::vector<bool>(offsets_.back(), true)});
  }

  bool is_done() const { return open_bound() >= limit_; }

  Cost gap() const {
    return result_.cost == kForbidden ? kForbidden : result_.cost - lower_bound();
  }

  void step() {
    if (root_) {
      finish_root();
    } else {
      Subproblem next = open_.top();
      open_.pop();
      ++result_.branches;
      expand(std::move(next));
    }
    report(open_bound());
  }

  SearchResult take() {
    result_.lower_bound = lower_bound();
    result_.proof_room = proof_.room();
    result_.proof = proof_.take();
    return std::move(result_);
  }

 private:
  struct Root {  // reduced and bounded, but not yet branched
    Reduction reduction;
    Bound bound;
    Subproblem sub;
  };

  /// Returns the lowest bound of the open subproblems, or kForbidden if none is open.
  Cost open_bound() const {
    if (root_) return root_->sub.bound;
    return open_.empty() ? kForbidden : open_.top().bound;
  }

  Cost lower_bound() const {
    return is_done() ? result_.cost : std::min(open_bound(), result_.cost);
  }

  int position(const Reduction& reduction, int core_node, int core_value) const {
    const int node = reduction.core_nodes[core_node];
    return offsets_[node] + reduction.values[node][reduction.core_values[core_node][core_value]];
  }

  Reduction reduce_allowed(const std::vector<bool>& allowed) const {
    Values kept(instance_.nodes.size());
    for (std::size_t i = 0; i < kept.size(); ++i)
      for (int a = 0; a < offsets_[i + 1] - offsets_[i]; ++a)
        if (allowed[offsets_[i] + a]) kept[i].push_back(a);
    return reduce(restrict_values(instance_, std::move(kept)), deadline_);
  }

  void report(Cost bound) const {
    if (limits_.report) limits_.report(std::min(bound, result_.cost), result_.cost);
  }

  void offer(const std::vector<int>& choice) {
    const Cost cost = cost_of(instance_, choice);
    if (cost >= result_.cost) return;
    result_.cost = cost;
    result_.choice = choice;
    limit_ = std::min(limit_, cost);
  }

  /// Returns the optimum of the subproblem if reductions or elimination find it, kForbidden if it
  /// has no choice, and otherwise nullopt. Adds the steps that prove the result, or those of the
  /// reductions alone.
  std::optional<Cost> solve_exactly(const Reduction& reduction, std::int64_t table_cap,
                                    ProofSteps& steps) {
    steps.insert(steps.end(), reduction.proof.begin(), reduction.proof.end());
    if (reduction.infeasible) return kForbidden;
    const auto order = find_class_order(reduction.core, table_cap, deadline_);
    if (!order || !deadline_.has_time_for(order->cells)) return std::nullopt;
    const auto exact = eliminate(reduction.core, *order, deadline_);
    if (!exact) return std::nullopt;
    if (!order->nodes.empty()) result_.width = std::max(result_.width, order->width);
    if (exact->cost != kForbidden) offer(lift(reduction, exact->choice));
    ProofStep elimination{Kind::kEliminate, {}};
    for (int node : order->nodes) elimination.numbers.push_back(reduction.core_nodes[node]);
    steps.push_back(std::move(elimination));
    return exact->cost;
  }

  /// Starts a round and records its reduction. Returns the cost of the exact solution, or nullopt
  /// if the round needs bounds.
  std::optional<Cost> start_round(const Reduction& reduction, const Subproblem& sub, int round) {
    ProofSteps steps;
    // The first round of the root starts from the unchanged instance, without a restart.
    if (round > 0 || sub.depth > 0) steps.push_back({Kind::kRestart, {}});
    const auto cost = solve_exactly(reduction, limits_.table_cap, steps);
    if (cost) steps.push_back({Kind::kClose, {*cost}});
    proof_.add(sub.block, steps);
    return cost;
  }

  void record(const Reduction& reduction, const Bound& bound, int block) {
    if (!proof_.is_on()) return;
    for (std::size_t e = 0; 2 * e < bound.messages.size(); ++e) {
      const PairTable& pair = reduction.core.pairs[e];
      ProofStep step{Kind::kMove, {reduction.core_nodes[pair.u], reduction.core_nodes[pair.v]}};
      for (const auto& costs : {bound.messages[2 * e], bound.messages[2 * e + 1]})
        step.numbers.insert(step.numbers.end(), costs.begin(), costs.end());
      proof_.add(block, std::move(step));
    }
    proof_.add(block, {Kind::kClose, {bound.lower_bound}});
  }

  void expand(Subproblem sub, int first_round = 0) {
    for (int round = first_round;; ++round) {
      Reduction reduction = reduce_allowed(sub.allowed);
      if (start_round(reduction, sub, round)) return;
      Bound bound =
          find_bound(reduction.core, sub.depth == 0 ? kRootPasses : kPasses, limit_, deadline_);
      record(reduction, bound, sub.block);
      if (!bound.choice.empty()) offer(lift(reduction, bound.choice));
      sub.bound = std::max(sub.bound, bound.lower_bound);
      if (sub.depth == 0) report(sub.bound);
      if (sub.bound >= limit_) return;
      const double pruned = prune(reduction, bound, sub);
      if (pruned < kEnoughPruned || round == kMaxRounds || deadline_.expired()) {
        if (sub.depth == 0)
          root_.emplace(Root{std::move(reduction), std::move(bound), std::move(sub)});
        else
          branch(reduction, bound, sub);
        return;
      }
    }
  }

  /// Finishes the root. It tries to solve the root with the most promising values, then in further
  /// rounds if values were removed, then with larger tables. If this is not enough, it branches.
  void finish_root() {
    Root root = std::move(*root_);
    root_.reset();
    solve_promising(root.reduction, root.bound, root.sub);
    if (root.sub.bound >= limit_) return;
    const bool is_smaller = prune(root.reduction, root.bound, root.sub) >= kEnoughPruned;
    if (is_smaller && ++root_returns_ < kMaxRounds) return expand(std::move(root.sub), 1);
    ProofSteps steps{{Kind::kRestart, {}}};
    const auto cost =
        solve_exactly(reduce_allowed(root.sub.allowed), kWideTables * limits_.table_cap, steps);
    if (!cost) return branch(root.reduction, root.bound, root.sub);
    steps.push_back({Kind::kClose, {*cost}});
    proof_.add(root.sub.block, steps);
  }

  /// Removes the values whose bound reaches `threshold` from `allowed`, and adds one step per node.
  /// Returns the number of removed values.
  int exclude(const Reduction& reduction, const Bound& bound, Cost threshold,
              std::vector<bool>& allowed, ProofSteps& steps) const {
    int excluded = 0;
    for (std::size_t i = 0; i < bound.value_bounds.size(); ++i) {
      const int node = reduction.core_nodes[i];
      ProofStep step{Kind::kExclude, {node}};
      for (std::size_t a = 0; a < bound.value_bounds[i].size(); ++a) {
        const int at = position(reduction, static_cast<int>(i), static_cast<int>(a));
        if (bound.value_bounds[i][a] < threshold || !allowed[at]) continue;
        allowed[at] = false;
        step.numbers.push_back(at - offsets_[node]);
      }
      if (step.numbers.size() == 1) continue;
      excluded += static_cast<int>(step.numbers.size()) - 1;
      steps.push_back(std::move(step));
    }
    return excluded;
  }

  /// Removes the values that cannot beat the best choice. Returns their share of all values.
  double prune(const Reduction& reduction, const Bound& bound, Subproblem& sub) {
    std::size_t values = 0;
    for (const auto& bounds : bound.value_bounds) values += bounds.size();
    ProofSteps steps;
    const int pruned = exclude(reduction, bound, limit_, sub.allowed, steps);
    proof_.add(sub.block, steps);
    return static_cast<double>(pruned) / static_cast<double>(values);
  }

  /// Solves with only the values whose bound is below a threshold. A choice with any other value
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
      if (thresholds[middle] >= limit_ || !solve_below(reduction, bound, sub, thresholds[middle])) {
        high = middle;
        continue;
      }
      low = middle + 1;
      if (sub.bound >= limit_) return;
    }
  }

  /// Solves with only the values whose bound is below `threshold`. Returns false if even this
  /// problem could not be solved.
  bool solve_below(const Reduction& reduction, const Bound& bound, Subproblem& sub,
                   Cost threshold) {
    std::vector<bool> allowed = sub.allowed;
    ProofSteps steps;
    exclude(reduction, bound, threshold, allowed, steps);
    steps.push_back({Kind::kRestart, {}});
    const auto cost = solve_exactly(reduce_allowed(allowed), limits_.table_cap, steps);
    if (!cost) return false;
    const Cost proven = std::min(*cost, threshold);
    if (proven > sub.bound) {
      sub.bound = proven;
      proof_.add(sub.block, {Kind::kConfine, {proven, static_cast<Cost>(steps.size())}});
      proof_.add(sub.block, steps);
      report(sub.bound);
    }
    return true;
  }

  /// Branches on the most promising value of one node. The node has the most neighbours, weighted
  /// by the logarithm of its number of values.
  void branch(const Reduction& reduction, const Bound& bound, const Subproblem& sub) {
    const int node = branching_node(reduction.core);
    const auto& bounds = bound.value_bounds[node];
    const int best =
        static_cast<int>(std::min_element(bounds.begin(), bounds.end()) - bounds.begin());
    const int part_node = reduction.core_nodes[node], at = position(reduction, node, best);
    Subproblem with = sub, without = sub;
    // All values of the node are cleared, also those that are not in the core. Otherwise dominated
    // values would come back.
    std::fill(with.allowed.begin() + offsets_[part_node],
              with.allowed.begin() + offsets_[part_node + 1], false);
    with.allowed[at] = true;
    without.allowed[at] = false;
    Cost rest = kForbidden;
    for (int a = 0; a < static_cast<int>(bounds.size()); ++a)
      if (a != best) rest = std::min(rest, bounds[a]);
    with.block = proof_.add_block();
    without.block = proof_.add_block();
    proof_.branch(sub.block, part_node, at - offsets_[part_node], with.block, without.block);
    push(std::move(with), bounds[best]);
    push(std::move(without), rest);
  }

  void push(Subproblem sub, Cost bound) {
    proof_.add(sub.block, {Kind::kClose, {bound}});
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
  SearchLimits limits_;
  const Deadline& deadline_ = limits_.deadline;
  ProofRecorder proof_;
  std::vector<int> offsets_;  // position of each node's values in Subproblem::allowed
  Cost limit_;                // the search is for choices cheaper than this
  int serial_ = 0;
  std::priority_queue<Subproblem, std::vector<Subproblem>, Later> open_;
  std::optional<Root> root_;
  int root_returns_ = 0;
  SearchResult result_;
};

Search::Search(const Instance& instance, SearchLimits limits)
    : steps_(std::make_unique<Steps>(instance, std::move(limits))) {}

Search::Search(Search&&) noexcept = default;

Search::~Search() = default;

bool Search::is_done() const { return steps_->is_done(); }

Cost Search::gap() const { return steps_->gap(); }

void Search::step() { steps_->step(); }

SearchResult Search::take() { return steps_->take(); }

}  // namespace torchalgo::pbqp

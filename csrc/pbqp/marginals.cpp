// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/marginals.h"

#include <algorithm>
#include <utility>

#include "pbqp/bound.h"
#include "pbqp/bucket_tree.h"

namespace torchalgo::pbqp {
namespace {

constexpr int kPasses = 200;
constexpr int kSumPerTable = 8;  // all tables together may hold this many times the largest one

// The limit on the work for runner-ups, in cells. Each runner-up takes a solution of the whole
// part. In a large part only as many are computed as the limit allows; the other nodes keep their
// bounds.
constexpr std::int64_t kRunnerUpCells = 1'000'000'000;
constexpr std::int64_t kStepsPerCell = 10;  // a rough estimate for reading and reducing

struct PartMarginals {
  std::vector<std::vector<Marginal>> values;
  Cost least = 0;  // of the part: the optimum or a bound
  bool is_exact = false;
};

class PartFinder {
 public:
  /// `choice` is an optimal choice restricted to the part, or empty.
  PartFinder(const Instance& part, std::vector<int> choice, std::int64_t table_cap,
             const Deadline& deadline)
      : part_(part), choice_(std::move(choice)), table_cap_(table_cap), deadline_(deadline) {}

  PartMarginals run() {
    if (find_exactly()) return std::move(result_);
    find_bounds();
    if (choice_.empty()) return std::move(result_);
    result_.least = cost_of(part_, choice_);
    result_.is_exact = true;
    for (std::size_t i = 0; i < choice_.size(); ++i) {
      for (Marginal& marginal : result_.values[i])
        marginal.cost = std::max(marginal.cost, result_.least);
      result_.values[i][choice_[i]] = {result_.least, true};
    }
    const std::int64_t most = kRunnerUpCells / cells_per_solution();
    const std::size_t count = std::min(choice_.size(), static_cast<std::size_t>(most));
    for (std::size_t i = 0; i < count && !deadline_.expired(); ++i)
      find_runner_up(static_cast<int>(i));
    return std::move(result_);
  }

 private:
  bool find_exactly() {
    const auto order = find_order(part_, kSumPerTable * table_cap_, deadline_);
    if (!order || !deadline_.has_time_for(3 * order->cells)) return false;
    const auto marginals = exact_marginals(part_, *order, table_cap_, deadline_);
    if (!marginals) return false;
    for (const auto& costs : *marginals) {
      result_.values.emplace_back();
      for (Cost cost : costs) result_.values.back().push_back({cost, true});
    }
    result_.least = *std::min_element((*marginals)[0].begin(), (*marginals)[0].end());
    result_.is_exact = true;
    return true;
  }

  std::int64_t cells_per_solution() const {
    std::int64_t cells = 1;
    for (const PairTable& pair : part_.pairs)
      cells += kStepsPerCell * static_cast<std::int64_t>(pair.cells.size());
    const auto order = find_class_order(part_, table_cap_, deadline_);
    return cells + (order ? order->cells : table_cap_);
  }

  void find_bounds() {
    const Bound bound = find_bound(part_, kPasses, kForbidden, deadline_);
    result_.least = bound.lower_bound;
    for (const auto& bounds : bound.value_bounds) {
      result_.values.emplace_back();
      for (Cost cost : bounds)
        result_.values.back().push_back({std::max(cost, bound.lower_bound), false});
    }
  }

  /// Solves the part without the chosen value. No other value of the node costs less than that
  /// optimum.
  void find_runner_up(int node) {
    auto& values = result_.values[node];
    if (values.size() < 2) return;
    Problem problem{part_.nodes, {}};
    for (const PairTable& pair : part_.pairs) problem.edges.push_back({pair.u, pair.v, pair.cells});
    problem.node_costs[node][choice_[node]] = kForbidden;
    SolveOptions options{table_cap_, deadline_.remaining()};
    options.proof_cap = 0;
    const Solution solution = solve(problem, options);
    for (std::size_t a = 0; a < values.size(); ++a) {
      if (static_cast<int>(a) == choice_[node]) continue;
      values[a].cost = std::max(values[a].cost, solution.lower_bound);
      values[a].is_exact = solution.status == Status::kInfeasible;
    }
    if (solution.status == Status::kOptimal) values[solution.choice[node]] = {solution.cost, true};
  }

  const Instance& part_;
  std::vector<int> choice_;
  std::int64_t table_cap_;
  const Deadline& deadline_;
  PartMarginals result_;
};

/// Returns the positions, within the part, of the values in an optimal solution. Returns an empty
/// list if the solution is not optimal.
std::vector<int> choice_within(const Restricted& source, const Solution& solution,
                               const std::vector<int>& nodes) {
  std::vector<int> choice;
  if (solution.status != Status::kOptimal) return choice;
  for (int i : nodes) {
    const auto& values = source.values[i];
    choice.push_back(static_cast<int>(
        std::lower_bound(values.begin(), values.end(), solution.choice[i]) - values.begin()));
  }
  return choice;
}

}  // namespace

std::vector<std::vector<Marginal>> find_marginals(const Restricted& source, const Problem& problem,
                                                  const Solution& solution, std::int64_t table_cap,
                                                  const Deadline& deadline) {
  std::vector<std::vector<Marginal>> marginals;
  for (const auto& costs : problem.node_costs)
    marginals.emplace_back(costs.size(), Marginal{kForbidden, true});
  if (solution.status == Status::kInfeasible) return marginals;
  const auto parts = connected_parts(source.instance);
  std::vector<PartMarginals> found;
  Cost total = source.instance.constant;
  int bounds = 0;  // parts whose least cost is only bounded
  for (const auto& nodes : parts) {
    const Instance part = part_of(source.instance, nodes);
    found.push_back(
        PartFinder(part, choice_within(source, solution, nodes), table_cap, deadline).run());
    total = add(total, found.back().least);
    bounds += !found.back().is_exact;
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const PartMarginals& part = found[p];
    const bool rest_is_exact = bounds == (part.is_exact ? 0 : 1);
    for (std::size_t i = 0; i < parts[p].size(); ++i)
      for (std::size_t a = 0; a < part.values[i].size(); ++a) {
        const Marginal& value = part.values[i][a];
        const int node = parts[p][i];
        const Cost cost = add(total - part.least, value.cost);
        marginals[node][source.values[node][a]] = {
            std::max(cost, solution.lower_bound),
            value.cost == kForbidden ? value.is_exact : value.is_exact && rest_is_exact};
      }
  }
  return marginals;
}

}  // namespace torchalgo::pbqp

// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/dual.h"

#include <algorithm>
#include <cstdint>

namespace torchalgo::pbqp {
namespace {

constexpr int kImproveSweeps = 20;

// The most that is ever added to or subtracted from a cell. A wall therefore stays far above every
// cost, and no sum with a wall overflows.
constexpr Cost kLargest = Cost{1} << 60;
constexpr Cost kWall = Cost{1} << 62;

__extension__ using Wide = __int128;  // sums over all nodes

Cost narrow(Wide sum) { return static_cast<Cost>(std::clamp<Wide>(sum, -kForbidden, kForbidden)); }

/// The least cost of each row and of each column of a table, after its messages are subtracted.
struct Reduced {
  std::vector<Cost> rows, cols;
  Cost least;
};

Reduced reduce_table(const std::vector<Cost>& cells, const std::vector<Cost>& to_row_node,
                     const std::vector<Cost>& to_col_node) {
  Reduced result{std::vector<Cost>(to_row_node.size(), kWall),
                 std::vector<Cost>(to_col_node.size(), kWall), kWall};
  const std::size_t cols = to_col_node.size();
  for (std::size_t a = 0; a < to_row_node.size(); ++a) {
    for (std::size_t b = 0; b < cols; ++b) {
      const Cost cost = cells[a * cols + b] - to_row_node[a] - to_col_node[b];
      result.rows[a] = std::min(result.rows[a], cost);
      result.cols[b] = std::min(result.cols[b], cost);
    }
    result.least = std::min(result.least, result.rows[a]);
  }
  return result;
}

}  // namespace

Dual::Dual(const Instance& instance)
    : constant_(instance.constant), nodes_(instance.nodes), arcs_(instance.nodes.size()) {
  std::vector<std::size_t> degree(nodes_.size(), 0);
  for (const PairTable& pair : instance.pairs) ++degree[pair.u], ++degree[pair.v];
  std::size_t most = 0;
  for (std::size_t d : degree) most = std::max(most, d);
  cap_ = kLargest / static_cast<Cost>(2 * most + 2);
  // Costs above the cap are lowered to the cap, so the bound stays valid. Real costs are far below
  // the cap.
  for (auto& costs : nodes_)
    for (Cost& cost : costs) cost = std::min(cost, cap_);
  for (const PairTable& pair : instance.pairs) {
    const int to_u = static_cast<int>(messages_.size()), to_v = to_u + 1;
    messages_.emplace_back(nodes_[pair.u].size(), 0);
    messages_.emplace_back(nodes_[pair.v].size(), 0);
    arcs_[pair.u].push_back({pair.v, to_u, to_v, rows_of(instance, pair, pair.v)});
    arcs_[pair.v].push_back({pair.u, to_v, to_u, rows_of(instance, pair, pair.u)});
  }
  for (auto& arcs : arcs_) {
    std::sort(arcs.begin(), arcs.end(),
              [](const Arc& a, const Arc& b) { return a.other < b.other; });
    for (Arc& arc : arcs)
      for (Cost& cell : arc.cells) cell = cell == kForbidden ? kWall : std::min(cell, cap_);
  }
}

void Dual::pass() {
  sweep(true);
  sweep(false);
}

std::vector<Cost> Dual::marginal(int node) const {
  std::vector<Cost> costs = nodes_[node];
  for (const Arc& arc : arcs_[node])
    for (std::size_t a = 0; a < costs.size(); ++a) costs[a] += messages_[arc.in][a];
  return costs;
}

/// Passes messages along all nodes. Each node takes all that the tables behind it can give and
/// passes a share to each table ahead.
void Dual::sweep(bool forward) {
  for (int step = 0; step < node_count(); ++step) {
    const int node = forward ? step : node_count() - 1 - step;
    Cost ahead = 0;
    for (const Arc& arc : arcs_[node]) {
      if ((arc.other > node) == forward)
        ++ahead;
      else
        pull(arc);
    }
    const Cost behind = static_cast<Cost>(arcs_[node].size()) - ahead;
    std::vector<Cost> share = marginal(node);
    const Cost least = *std::min_element(share.begin(), share.end());
    for (Cost& cost : share) cost = (cost - least) / std::max<Cost>({1, ahead, behind});
    for (const Arc& arc : arcs_[node])
      if ((arc.other > node) == forward)
        for (std::size_t a = 0; a < share.size(); ++a)
          messages_[arc.in][a] = std::max(messages_[arc.in][a] - share[a], -cap_);
  }
}

void Dual::pull(const Arc& arc) {
  std::vector<Cost>& in = messages_[arc.in];
  const std::vector<Cost>& out = messages_[arc.out];
  std::fill(in.begin(), in.end(), kForbidden);
  for (std::size_t b = 0; b < out.size(); ++b) {
    const Cost* row = &arc.cells[b * in.size()];
    for (std::size_t a = 0; a < in.size(); ++a) in[a] = std::min(in[a], row[a] - out[b]);
  }
  const Cost least = *std::min_element(in.begin(), in.end());
  for (Cost& message : in) message = std::min(message - least, cap_);
}

DualValue Dual::evaluate() const {
  DualValue value;
  Wide sum = constant_;
  for (int i = 0; i < node_count(); ++i) {
    value.value_bounds.push_back(marginal(i));
    auto& gaps = value.value_bounds.back();
    const Cost least = *std::min_element(gaps.begin(), gaps.end());
    for (Cost& gap : gaps) gap -= least;
    sum += least;
  }
  for (int i = 0; i < node_count(); ++i)
    for (const Arc& arc : arcs_[i]) {
      if (arc.other < i) continue;
      const Reduced table = reduce_table(arc.cells, messages_[arc.out], messages_[arc.in]);
      auto &left = value.value_bounds[arc.other], &right = value.value_bounds[i];
      for (std::size_t a = 0; a < left.size(); ++a)
        left[a] += std::min(table.rows[a] - table.least, cap_);
      for (std::size_t b = 0; b < right.size(); ++b)
        right[b] += std::min(table.cols[b] - table.least, cap_);
      sum += table.least;
    }
  value.lower_bound = narrow(sum);
  for (auto& bounds : value.value_bounds)
    for (Cost& bound : bounds) bound = narrow(sum + bound);
  return value;
}

void Dual::Score::count(Cost cell) {
  if (cell == kWall)
    ++forbidden;
  else
    cost += cell;
}

/// Returns the best value of `node`. Neighbours below `placed` count with their choice, the others
/// with their messages.
int Dual::best_value(int node, const std::vector<int>& choice, int placed) const {
  std::vector<Score> scores(nodes_[node].size());
  for (std::size_t a = 0; a < scores.size(); ++a) scores[a].count(nodes_[node][a]);
  for (const Arc& arc : arcs_[node]) {
    const Cost* costs = arc.other < placed ? &arc.cells[choice[arc.other] * scores.size()]
                                           : messages_[arc.in].data();
    for (std::size_t a = 0; a < scores.size(); ++a) scores[a].count(costs[a]);
  }
  const auto best = std::min_element(scores.begin(), scores.end());
  // A node keeps its value unless another one is better. Otherwise improve() might not end.
  if (placed > node && scores[choice[node]] == *best) return choice[node];
  return static_cast<int>(best - scores.begin());
}

std::vector<int> Dual::round() const {
  std::vector<int> choice(nodes_.size(), 0);
  for (int i = 0; i < node_count(); ++i) choice[i] = best_value(i, choice, i);
  improve(choice);
  return choice;
}

void Dual::improve(std::vector<int>& choice) const {
  bool changed = true;
  for (int sweep = 0; sweep < kImproveSweeps && changed; ++sweep) {
    changed = false;
    for (int i = 0; i < node_count(); ++i) {
      const int value = best_value(i, choice, node_count());
      changed |= value != choice[i];
      choice[i] = value;
    }
  }
}

}  // namespace torchalgo::pbqp

// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/reduce.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

namespace torchalgo::pbqp {
namespace {

using Kind = ProofStep::Kind;

constexpr int kMaxRounds = 8;                         // of simplify_core: later rounds find little
constexpr std::int64_t kDominancePerCell = 10;        // a rough factor on the work of R1
constexpr std::int64_t kDominanceSteps = 20'000'000;  // comparisons, all rounds together

using Word = std::uint64_t;  // sums of two costs, kForbidden among them, do not wrap

/// Returns cells[a][b] = min over y of costs[y] + left[y][a] + right[y][b].
std::vector<Cost> join_neighbours(const Eliminated& out, std::size_t rows, std::size_t cols) {
  std::vector<Cost> cells(rows * cols, kForbidden);
  for (std::size_t y = 0; y < out.costs.size(); ++y) {
    const Cost* right = &out.neighbours[1].rows[y * cols];
    for (std::size_t a = 0; a < rows; ++a) {
      const Cost base = add(out.costs[y], out.neighbours[0].rows[y * rows + a]);
      if (base == kForbidden) continue;
      Cost* row = &cells[a * cols];
      for (std::size_t b = 0; b < cols; ++b)
        row[b] = static_cast<Cost>(std::min(static_cast<Word>(row[b]),
                                            static_cast<Word>(base) + static_cast<Word>(right[b])));
    }
  }
  return cells;
}

class Reducer {
 public:
  Reducer(Restricted source, const Deadline& deadline)
      : deadline_(deadline),
        work_(std::move(source.instance)),
        adjacent_(work_.nodes.size()),
        gone_(work_.nodes.size(), false),
        queued_(work_.nodes.size(), false) {
    result_.values = std::move(source.values);
    for (std::size_t e = 0; e < work_.pairs.size(); ++e) {
      adjacent_[work_.pairs[e].u][work_.pairs[e].v] = static_cast<int>(e);
      adjacent_[work_.pairs[e].v][work_.pairs[e].u] = static_cast<int>(e);
    }
  }

  Reduction run() {
    for (int i = 0; i < node_count(); ++i) {
      result_.infeasible |= allowed(i) == 0;
      enqueue(i);
    }
    // Dominated values are removed before R2, because R2's work grows with the third power of the
    // number of values.
    const bool is_worth_it = deadline_.has_time_for(kDominancePerCell * cell_count());
    for (int i = 0; i < node_count() && is_worth_it && may_go_on(); ++i) drop_dominated(i);
    eliminate_queued();
    for (int round = 0; round < kMaxRounds && may_go_on() && simplify_core(); ++round)
      eliminate_queued();
    for (int i = 0; i < node_count(); ++i) result_.infeasible |= !gone_[i] && allowed(i) == 0;
    if (result_.infeasible) {
      Reduction infeasible;
      infeasible.infeasible = true;
      infeasible.proof = std::move(result_.proof);
      return infeasible;
    }
    collect_core();
    return std::move(result_);
  }

 private:
  int node_count() const { return static_cast<int>(work_.nodes.size()); }
  std::size_t size(int node) const { return work_.nodes[node].size(); }

  std::int64_t cell_count() const {
    std::int64_t cells = 0;
    for (const PairTable& pair : work_.pairs) cells += static_cast<std::int64_t>(pair.cells.size());
    return cells;
  }

  bool may_go_on() const { return !result_.infeasible && !deadline_.expired(); }

  int allowed(int node) const {
    const auto& costs = work_.nodes[node];
    return static_cast<int>(costs.size() - std::count(costs.begin(), costs.end(), kForbidden));
  }

  std::vector<int> allowed_values(int node) const {
    std::vector<int> values;
    for (std::size_t a = 0; a < size(node); ++a)
      if (work_.nodes[node][a] != kForbidden) values.push_back(static_cast<int>(a));
    return values;
  }

  void enqueue(int node) {
    if (gone_[node] || queued_[node]) return;
    queued_[node] = true;
    queue_.push_back(node);
  }

  void eliminate_queued() {
    while (!queue_.empty() && may_go_on()) {
      const int node = queue_.front();
      queue_.pop_front();
      queued_[node] = false;
      if (gone_[node]) continue;
      const int values = allowed(node);
      if (values == 0)
        result_.infeasible = true;
      else if (values == 1 || adjacent_[node].size() <= 2)
        eliminate(node, values);
    }
  }

  void eliminate(int node, int values) {
    const Eliminated& out = detach(node);
    const std::size_t degree = out.neighbours.size();
    RuleCounts& counts = result_.counts;
    if (values == 1) {
      ++counts.folded;
      fold(out);
    } else if (degree == 0) {
      ++counts.r0;
      work_.constant = add(work_.constant, *std::min_element(out.costs.begin(), out.costs.end()));
    } else if (degree == 1) {
      ++counts.r1;
      apply_r1(out);
    } else {
      ++counts.r2;
      apply_r2(out);
    }
    for (const auto& neighbour : out.neighbours) enqueue(neighbour.node);
  }

  /// Removes the node from the graph and moves its tables into the sequence of eliminated nodes.
  const Eliminated& detach(int node) {
    Eliminated out;
    out.node = node;
    for (const auto& [other, pair] : adjacent_[node]) {
      PairTable& table = work_.pairs[pair];
      out.neighbours.push_back(
          {other, node == table.u ? std::move(table.cells) : rows_of(work_, table, node)});
      table.cells = {};
      adjacent_[other].erase(node);
    }
    adjacent_[node].clear();
    gone_[node] = true;
    if (result_.proof.empty() || result_.proof.back().kind != Kind::kEliminate)
      result_.proof.push_back({Kind::kEliminate, {}});
    result_.proof.back().numbers.push_back(node);
    out.costs = work_.nodes[node];
    result_.sequence.push_back(std::move(out));
    return result_.sequence.back();
  }

  void fold(const Eliminated& out) {
    std::size_t value = 0;
    while (out.costs[value] == kForbidden) ++value;
    work_.constant = add(work_.constant, out.costs[value]);
    for (const auto& neighbour : out.neighbours) {
      auto& costs = work_.nodes[neighbour.node];
      const Cost* row = &neighbour.rows[value * costs.size()];
      for (std::size_t b = 0; b < costs.size(); ++b) costs[b] = add(costs[b], row[b]);
    }
  }

  void apply_r1(const Eliminated& out) {
    auto& costs = work_.nodes[out.neighbours[0].node];
    for (std::size_t b = 0; b < costs.size(); ++b) {
      Cost best = kForbidden;
      for (std::size_t y = 0; y < out.costs.size(); ++y)
        best = std::min(best, add(out.costs[y], out.neighbours[0].rows[y * costs.size() + b]));
      costs[b] = add(costs[b], best);
    }
  }

  void apply_r2(const Eliminated& out) {  // neighbours ascend, so [0] is the row of the new table
    const int u = out.neighbours[0].node, v = out.neighbours[1].node;
    std::vector<Cost> cells = join_neighbours(out, size(u), size(v));
    const auto found = adjacent_[u].find(v);
    if (found == adjacent_[u].end()) {
      adjacent_[u][v] = adjacent_[v][u] = static_cast<int>(work_.pairs.size());
      work_.pairs.push_back({u, v, std::move(cells)});
      return;
    }
    std::vector<Cost>& sum = work_.pairs[found->second].cells;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = add(sum[i], cells[i]);
  }

  /// Simplifies all tables and nodes. Returns true if a value or a table was removed, so that more
  /// nodes may be eliminated.
  bool simplify_core() {
    bool changed = false;
    for (std::size_t e = 0; e < work_.pairs.size(); ++e)
      if (!work_.pairs[e].cells.empty()) changed |= tighten(static_cast<int>(e));
    for (int i = 0; i < node_count(); ++i) result_.infeasible |= !gone_[i] && allowed(i) == 0;
    if (result_.infeasible) return false;
    for (int i = 0; i < node_count() && !deadline_.expired(); ++i)
      if (!gone_[i]) changed |= drop_dominated(i);
    return changed;
  }

  /// Moves the minimum of each row and column to its node, and removes a table that only holds
  /// zeros. Returns true if anything was removed.
  bool tighten(int index) {
    PairTable& pair = work_.pairs[index];
    auto &left = work_.nodes[pair.u], &right = work_.nodes[pair.v];
    for (std::size_t a = 0; a < left.size(); ++a)
      for (std::size_t b = 0; b < right.size(); ++b)
        if (left[a] == kForbidden || right[b] == kForbidden)
          pair.cells[a * right.size() + b] = kForbidden;
    const Values values{allowed_values(pair.u), allowed_values(pair.v)};
    ProofStep step{Kind::kMove, {pair.u, pair.v}};
    bool changed = false;
    for (std::size_t a = 0; a < left.size(); ++a)
      changed |= move_minimum(&pair.cells[a * right.size()], right.size(), 1, left[a], step);
    for (std::size_t b = 0; b < right.size(); ++b)
      changed |= move_minimum(&pair.cells[b], left.size(), right.size(), right[b], step);
    const bool empty = std::all_of(pair.cells.begin(), pair.cells.end(),
                                   [](Cost c) { return c == 0 || c == kForbidden; }) &&
                       is_rectangle(pair);
    record_tightening(pair, values, std::move(step), empty);
    if (empty) {
      adjacent_[pair.u].erase(pair.v);
      adjacent_[pair.v].erase(pair.u);
      pair.cells = {};
      ++result_.counts.tables;
    }
    if (changed || empty) {
      enqueue(pair.u);
      enqueue(pair.v);
    }
    return changed || empty;
  }

  /// Records the proof steps of `tighten`. First come the moves, then the values that have no
  /// partner left (any other value is as good), then an empty move if a table of zeros is left.
  void record_tightening(const PairTable& pair, const Values& values, ProofStep moves,
                         bool is_empty) {
    ProofSteps drops;
    auto moved = moves.numbers.begin() + 2;
    for (const auto& [node, alive] : {std::pair(pair.u, values[0]), std::pair(pair.v, values[1])}) {
      const std::vector<int> left = allowed_values(node);
      if (left.empty()) return;  // infeasible: the table alone proves it
      const std::vector<int>& names = result_.values[node];
      for (int a : alive) {
        if (*moved == kForbidden)
          drops.push_back({Kind::kDrop, {node, names[a], names[left.front()]}});
        if (*moved == kForbidden) *moved = 0;
        ++moved;
      }
    }
    const bool is_still = std::all_of(moves.numbers.begin() + 2, moves.numbers.end(),
                                      [](Cost cost) { return cost == 0; });
    if (!is_still || (is_empty && drops.empty())) result_.proof.push_back(std::move(moves));
    for (ProofStep& drop : drops) result_.proof.push_back(std::move(drop));
    if (!is_empty || drops.empty()) return;
    ProofStep zeros{Kind::kMove, {pair.u, pair.v}};
    zeros.numbers.resize(2 + allowed(pair.u) + allowed(pair.v), 0);
    result_.proof.push_back(std::move(zeros));
  }

  /// Returns true if the table itself forbids nothing: all its forbidden cells belong to forbidden
  /// values of the nodes.
  bool is_rectangle(const PairTable& pair) const {
    const auto forbidden = std::count(pair.cells.begin(), pair.cells.end(), kForbidden);
    const std::size_t free = static_cast<std::size_t>(allowed(pair.u)) * allowed(pair.v);
    return pair.cells.size() - forbidden == free;
  }

  /// Moves the minimum of a row or column to its node. Returns true if the value has no partner
  /// left.
  static bool move_minimum(Cost* cells, std::size_t count, std::size_t stride, Cost& node_cost,
                           ProofStep& step) {
    if (node_cost == kForbidden) return false;
    Cost least = kForbidden;
    for (std::size_t i = 0; i < count; ++i) least = std::min(least, cells[i * stride]);
    node_cost = add(node_cost, least);
    step.numbers.push_back(least);
    if (least == kForbidden) return true;
    if (least == 0) return false;
    for (std::size_t i = 0; i < count; ++i)
      if (cells[i * stride] != kForbidden) cells[i * stride] -= least;
    return false;
  }

  /// Removes values by Goldstein's test: value a is removed if another value never costs more,
  /// whatever the neighbours choose. Returns true if any was removed.
  bool drop_dominated(int node) {
    auto& costs = work_.nodes[node];
    std::vector<std::vector<Cost>> tables;
    for (const auto& [other, pair] : adjacent_[node])
      tables.push_back(rows_of(work_, work_.pairs[pair], node));
    ProofStep drops{Kind::kDrop, {node}};
    for (std::size_t a = costs.size(); a-- > 0;) {  // of equal values the lowest stays
      if (costs[a] == kForbidden) continue;
      for (std::size_t b = 0; b < costs.size() && steps_ < kDominanceSteps; ++b) {
        if (b == a || costs[b] == kForbidden || !dominates(tables, costs, b, a)) continue;
        costs[a] = kForbidden;
        ++result_.counts.dominated;
        drops.numbers.push_back(result_.values[node][a]);
        drops.numbers.push_back(result_.values[node][b]);
        break;
      }
    }
    if (drops.numbers.size() == 1) return false;
    result_.proof.push_back(std::move(drops));
    enqueue(node);
    for (const auto& [other, pair] : adjacent_[node]) enqueue(other);
    return true;
  }

  bool dominates(const std::vector<std::vector<Cost>>& tables, const std::vector<Cost>& costs,
                 std::size_t better, std::size_t worse) {
    Cost spare = costs[worse] - costs[better];  // the most that `better` may lose in the tables
    if (spare < 0) return false;
    for (const auto& cells : tables) {
      const std::size_t cols = cells.size() / costs.size();
      Cost loss = std::numeric_limits<Cost>::min();
      for (std::size_t x = 0; x < cols; ++x) {
        ++steps_;
        const Cost low = cells[better * cols + x], high = cells[worse * cols + x];
        if (high == kForbidden) continue;
        if (low == kForbidden) return false;
        loss = std::max(loss, low - high);
        // After `tighten` each row holds a zero, so no later table can lower the loss.
        if (loss > spare) return false;
      }
      if (loss > 0) spare -= loss;
    }
    return true;
  }

  void collect_core() {
    std::vector<int> position(work_.nodes.size(), -1);
    Instance core;
    core.constant = work_.constant;
    for (int i = 0; i < node_count(); ++i) {
      if (gone_[i]) continue;
      position[i] = static_cast<int>(core.nodes.size());
      result_.core_nodes.push_back(i);
      core.nodes.push_back(work_.nodes[i]);
    }
    for (PairTable& pair : work_.pairs)
      if (!pair.cells.empty() && position[pair.u] >= 0 && position[pair.v] >= 0)
        core.pairs.push_back({position[pair.u], position[pair.v], std::move(pair.cells)});
    Restricted kept = drop_forbidden(std::move(core));
    result_.core = std::move(kept.instance);
    result_.core_values = std::move(kept.values);
  }

  const Deadline& deadline_;
  Instance work_;
  std::vector<std::map<int, int>> adjacent_;  // neighbour -> position in work_.pairs
  std::vector<bool> gone_, queued_;
  std::deque<int> queue_;
  std::int64_t steps_ = 0;
  Reduction result_;
};

}  // namespace

Reduction reduce(Restricted source, const Deadline& deadline) {
  return Reducer(std::move(source), deadline).run();
}

std::vector<int> lift(const Reduction& reduction, const std::vector<int>& core_choice) {
  std::vector<int> choice(reduction.values.size(), 0);
  for (std::size_t i = 0; i < core_choice.size(); ++i)
    choice[reduction.core_nodes[i]] = reduction.core_values[i][core_choice[i]];
  for (auto out = reduction.sequence.rbegin(); out != reduction.sequence.rend(); ++out) {
    Cost best = kForbidden;
    for (std::size_t y = 0; y < out->costs.size(); ++y) {
      Cost cost = out->costs[y];
      for (const auto& neighbour : out->neighbours) {
        const std::size_t cols = neighbour.rows.size() / out->costs.size();
        cost = add(cost, neighbour.rows[y * cols + choice[neighbour.node]]);
      }
      if (cost >= best) continue;
      best = cost;
      choice[out->node] = static_cast<int>(y);
    }
  }
  for (std::size_t i = 0; i < choice.size(); ++i) choice[i] = reduction.values[i][choice[i]];
  return choice;
}

}  // namespace torchalgo::pbqp

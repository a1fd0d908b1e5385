// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/order.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "pbqp/classes.h"

namespace torchalgo::pbqp {
namespace {

constexpr std::int64_t kTooLarge = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostCells = std::int64_t{1} << 40;  // so that sums of products fit
constexpr std::size_t kMostValues = 65535;  // elimination keeps a value's position in 16 bits

// The results of greedy rules depend on how ties are broken. If the tables are so large that
// another order may save more time than it takes to find, the rules are tried again with randomly
// changed ranks.
constexpr std::int64_t kWorthAnother = 20'000;  // cells per node
constexpr std::uint64_t kSeeds = 8;
constexpr std::int64_t kFirstTry = 4;  // times the cap: a later attempt may stay within it

enum class Rule { kMinFill, kWeightedMinFill, kLeastTable, kSweep, kGiven };

struct Neighbour {
  int node = 0;
  int classes = 0;  // of that node's values, as the common tables distinguish them
};

using Neighbours = std::vector<std::vector<Neighbour>>;  // each list ascends

bool is_below(const Neighbour& neighbour, int node) { return neighbour.node < node; }

/// Returns the nodes in breadth-first order from `start`, neighbours of low degree first.
std::vector<int> breadth_first(const Neighbours& neighbours, int start, std::vector<bool>& seen) {
  std::vector<int> nodes{start};
  seen[start] = true;
  for (std::size_t next = 0; next < nodes.size(); ++next) {
    const std::size_t first = nodes.size();
    for (const auto [other, classes] : neighbours[nodes[next]]) {
      if (seen[other]) continue;
      seen[other] = true;
      nodes.push_back(other);
    }
    std::stable_sort(nodes.begin() + static_cast<std::ptrdiff_t>(first), nodes.end(),
                     [&](int a, int b) { return neighbours[a].size() < neighbours[b].size(); });
  }
  return nodes;
}

/// Returns each node's position in a sweep through its connected part, from one far end to the
/// other (Cuthill & McKee 1969, ACM). On long graphs the sweep gives a small width. Greedy rules
/// start everywhere at once and do not.
std::vector<int> sweep_places(const Neighbours& neighbours) {
  std::vector<int> places(neighbours.size());
  std::vector<bool> seen(neighbours.size(), false), swept(neighbours.size(), false);
  int place = 0;
  for (std::size_t i = 0; i < neighbours.size(); ++i) {
    if (seen[i]) continue;
    const int far_end = breadth_first(neighbours, static_cast<int>(i), seen).back();
    for (int node : breadth_first(neighbours, far_end, swept)) places[node] = place++;
  }
  return places;
}

class OrderFinder {
 public:
  OrderFinder(const std::vector<std::size_t>& sizes, Neighbours neighbours, ClassPool& pool,
              Rule rule, std::uint64_t seed, std::int64_t cell_cap, const Deadline& deadline)
      : deadline_(deadline),
        rule_(rule),
        seed_(seed),
        cap_(std::min(cell_cap, kMostCells)),
        sizes_(sizes),
        pool_(pool),
        neighbours_(std::move(neighbours)) {
    if (rule == Rule::kSweep) sweep_ = sweep_places(neighbours_);
    version_.assign(sizes_.size(), 0);
    gone_.assign(sizes_.size(), false);
  }

  std::optional<EliminationOrder> run() {
    for (std::size_t i = 0; i < sizes_.size(); ++i) push(static_cast<int>(i));
    while (!queue_.empty()) {
      const auto [first, second, node, version] = queue_.top();
      queue_.pop();
      if (gone_[node] || version != version_[node]) continue;
      const std::int64_t cells = table_cells(node);
      if (cells > cap_ - order_.cells) return std::nullopt;  // the table or the sum is too large
      if (deadline_.expired()) return std::nullopt;
      order_.cells += cells;
      order_.width = std::max(order_.width, static_cast<int>(neighbours_[node].size()));
      order_.nodes.push_back(node);
      eliminate(node);
    }
    return order_;
  }

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, int, int>;  // rank, tie, node, version

  bool fills() const { return rule_ == Rule::kMinFill || rule_ == Rule::kWeightedMinFill; }

  /// Returns the position of `b` in the neighbours of `a`, or the position at which to insert it.
  std::vector<Neighbour>::iterator place(int a, int b) {
    return std::lower_bound(neighbours_[a].begin(), neighbours_[a].end(), b, is_below);
  }

  bool joined(int a, int b) {
    if (neighbours_[a].size() > neighbours_[b].size()) std::swap(a, b);
    const auto at = place(a, b);
    return at != neighbours_[a].end() && at->node == b;
  }

  /// Returns the cells of the node's table, or kTooLarge if they exceed the cap. The loop ends
  /// early for a node with many neighbours.
  std::int64_t table_cells(int node) const {
    if (sizes_[node] > kMostValues) return kTooLarge;
    std::int64_t cells = static_cast<std::int64_t>(sizes_[node]);
    for (const auto [other, classes] : neighbours_[node]) {
      if (cells > cap_) return kTooLarge;
      cells *= static_cast<std::int64_t>(std::min(pool_.count(classes), kMostValues + 1));
    }
    return cells > cap_ ? kTooLarge : cells;
  }

  std::int64_t fill(int node) {
    std::int64_t sum = 0;
    const auto& list = neighbours_[node];
    for (std::size_t i = 0; i < list.size(); ++i)
      for (std::size_t j = i + 1; j < list.size(); ++j)
        if (!joined(list[i].node, list[j].node))
          sum += rule_ == Rule::kMinFill ? 1
                                         : static_cast<std::int64_t>(pool_.count(list[i].classes) *
                                                                     pool_.count(list[j].classes));
    return sum;
  }

  /// Returns `rank` scaled by a factor that depends on node and seed. The factors differ by up to a
  /// third.
  std::int64_t disturbed(std::int64_t rank, int node) const {
    std::uint64_t hash = (static_cast<std::uint64_t>(node) + 1) * 0x9e3779b97f4a7c15 * seed_;
    hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9;
    const std::int64_t most = std::int64_t{1} << 50;
    return std::min(rank, most) * static_cast<std::int64_t>(192 + (hash >> 58));
  }

  void push(int node) {
    const std::int64_t cells = table_cells(node);
    std::int64_t rank = cells, tie = static_cast<std::int64_t>(neighbours_[node].size());
    if (rule_ == Rule::kGiven) rank = node;
    if (rule_ == Rule::kSweep) rank = sweep_[node];
    if (fills() && cells != kTooLarge) {
      rank = fill(node);
      tie = cells;
    }
    if (seed_ > 0 && cells != kTooLarge) rank = disturbed(rank, node);
    queue_.push({rank, tie, node, version_[node]});
  }

  /// Records that a table holds both nodes and distinguishes these classes of `to`.
  void join(int from, const Neighbour& to) {
    const auto at = place(from, to.node);
    if (at == neighbours_[from].end() || at->node != to.node)
      neighbours_[from].insert(at, to);
    else
      at->classes = pool_.refine(at->classes, to.classes);
  }

  /// Adds the nodes that are neighbours of both `a` and `b` to `touched`. The new edge is one
  /// missing edge less for them.
  void collect_common(int a, int b, std::vector<int>& touched) {
    if (neighbours_[a].size() > neighbours_[b].size()) std::swap(a, b);
    for (const auto [node, classes] : neighbours_[a])
      if (joined(b, node)) touched.push_back(node);
  }

  void eliminate(int node) {
    gone_[node] = true;
    const std::vector<Neighbour> list = std::move(neighbours_[node]);
    std::vector<int> touched;
    for (const auto [other, classes] : list) {
      touched.push_back(other);
      neighbours_[other].erase(place(other, node));
    }
    for (std::size_t i = 0; i < list.size(); ++i)
      for (std::size_t j = i + 1; j < list.size(); ++j) {
        if (fills() && !joined(list[i].node, list[j].node))
          collect_common(list[i].node, list[j].node, touched);
        join(list[i].node, list[j]);
        join(list[j].node, list[i]);
      }
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (int other : touched) {
      ++version_[other];
      push(other);
    }
  }

  const Deadline& deadline_;
  Rule rule_;
  std::uint64_t seed_;  // 0: ranks are not changed
  std::int64_t cap_;
  const std::vector<std::size_t>& sizes_;
  ClassPool& pool_;
  Neighbours neighbours_;
  std::vector<int> sweep_;    // for Rule::kSweep: a node's position
  std::vector<int> version_;  // of a node's newest key in the queue
  std::vector<bool> gone_;
  std::priority_queue<Key, std::vector<Key>, std::greater<Key>> queue_;
  EliminationOrder order_;
};

Neighbours neighbours_in(const Instance& instance, bool with_classes, ClassPool& pool) {
  Neighbours neighbours(instance.nodes.size());
  for (const PairTable& pair : instance.pairs) {
    ClassTable table;
    if (with_classes) {
      table = find_classes(instance, pair, pool);
    } else {
      table.u_classes = pool.values(instance.nodes[pair.u].size());
      table.v_classes = pool.values(instance.nodes[pair.v].size());
    }
    neighbours[pair.u].push_back({pair.v, table.v_classes});
    neighbours[pair.v].push_back({pair.u, table.u_classes});
  }
  for (auto& list : neighbours)
    std::sort(list.begin(), list.end(),
              [](const Neighbour& a, const Neighbour& b) { return a.node < b.node; });
  return neighbours;
}

std::optional<EliminationOrder> best_order(const Instance& instance, bool with_classes,
                                           std::int64_t cell_cap, const Deadline& deadline) {
  ClassPool pool;
  const Neighbours neighbours = neighbours_in(instance, with_classes, pool);
  std::vector<std::size_t> sizes;
  for (const auto& costs : instance.nodes) sizes.push_back(costs.size());
  std::optional<EliminationOrder> best;
  const auto attempt = [&](Rule rule, std::uint64_t seed) {
    // Once there is an order, a search ends when its order becomes as large.
    const std::int64_t cap = best ? best->cells - 1 : kFirstTry * std::min(cell_cap, kMostCells);
    auto order = OrderFinder(sizes, neighbours, pool, rule, seed, cap, deadline).run();
    if (order) best = std::move(order);
  };
  for (Rule rule :
       {Rule::kWeightedMinFill, Rule::kMinFill, Rule::kLeastTable, Rule::kSweep, Rule::kGiven})
    attempt(rule, 0);
  const auto nodes = static_cast<std::int64_t>(sizes.size());
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed)
    for (Rule rule : {Rule::kWeightedMinFill, Rule::kMinFill, Rule::kLeastTable})
      if (best && best->cells > kWorthAnother * nodes) attempt(rule, seed);
  if (best && best->cells > cell_cap) best.reset();
  return best;
}

}  // namespace

std::optional<EliminationOrder> find_order(const Instance& instance, std::int64_t cell_cap,
                                           const Deadline& deadline) {
  return best_order(instance, false, cell_cap, deadline);
}

std::optional<EliminationOrder> find_class_order(const Instance& instance, std::int64_t cell_cap,
                                                 const Deadline& deadline) {
  return best_order(instance, true, cell_cap, deadline);
}

}  // namespace torchalgo::pbqp

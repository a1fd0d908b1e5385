// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/order.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

namespace torchalgo::pbqp {
namespace {

constexpr std::int64_t kTooLarge = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostCells = std::int64_t{1} << 40;  // so that sums of products fit
constexpr std::size_t kMostValues = 65535;  // elimination keeps a value's position in 16 bits

enum class Rule { kMinFill, kWeightedMinFill, kLeastTable, kSweep, kGiven };

using Neighbours = std::vector<std::vector<int>>;  // each list ascends

/// Breadth first from `start`, neighbours of low degree first.
std::vector<int> breadth_first(const Neighbours& neighbours, int start, std::vector<bool>& seen) {
  std::vector<int> nodes{start};
  seen[start] = true;
  for (std::size_t next = 0; next < nodes.size(); ++next) {
    const std::size_t first = nodes.size();
    for (int other : neighbours[nodes[next]]) {
      if (seen[other]) continue;
      seen[other] = true;
      nodes.push_back(other);
    }
    std::stable_sort(nodes.begin() + static_cast<std::ptrdiff_t>(first), nodes.end(),
                     [&](int a, int b) { return neighbours[a].size() < neighbours[b].size(); });
  }
  return nodes;
}

/// Each part from one far end to the other (Cuthill & McKee 1969, ACM): narrow where the graph is
/// long, as greedy rules that start everywhere at once are not.
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
  OrderFinder(const Instance& instance, Rule rule, std::int64_t cell_cap, const Deadline& deadline)
      : deadline_(deadline),
        rule_(rule),
        cap_(std::min(cell_cap, kMostCells)),
        neighbours_(instance.nodes.size()) {
    for (const auto& costs : instance.nodes) sizes_.push_back(costs.size());
    for (const PairTable& pair : instance.pairs) {
      neighbours_[pair.u].push_back(pair.v);
      neighbours_[pair.v].push_back(pair.u);
    }
    for (auto& list : neighbours_) std::sort(list.begin(), list.end());
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
      if (cells > cap_ - order_.cells) return std::nullopt;  // kTooLarge or too much in sum
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

  bool joined(int a, int b) const {
    if (neighbours_[a].size() > neighbours_[b].size()) std::swap(a, b);
    return std::binary_search(neighbours_[a].begin(), neighbours_[a].end(), b);
  }

  /// kTooLarge above the cap, found without walking all of a hub's neighbours.
  std::int64_t table_cells(int node) const {
    if (sizes_[node] > kMostValues) return kTooLarge;
    std::int64_t cells = static_cast<std::int64_t>(sizes_[node]);
    for (int other : neighbours_[node]) {
      if (cells > cap_) return kTooLarge;
      cells *= static_cast<std::int64_t>(std::min(sizes_[other], kMostValues + 1));
    }
    return cells > cap_ ? kTooLarge : cells;
  }

  std::int64_t fill(int node) const {
    std::int64_t sum = 0;
    const auto& list = neighbours_[node];
    for (std::size_t i = 0; i < list.size(); ++i)
      for (std::size_t j = i + 1; j < list.size(); ++j)
        if (!joined(list[i], list[j]))
          sum += rule_ == Rule::kMinFill
                     ? 1
                     : static_cast<std::int64_t>(sizes_[list[i]] * sizes_[list[j]]);
    return sum;
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
    queue_.push({rank, tie, node, version_[node]});
  }

  static void insert(std::vector<int>& list, int node) {
    list.insert(std::lower_bound(list.begin(), list.end(), node), node);
  }

  /// Nodes that see both ends of a new edge have one missing edge less.
  void collect_common(int a, int b, std::vector<int>& touched) const {
    if (neighbours_[a].size() > neighbours_[b].size()) std::swap(a, b);
    for (int node : neighbours_[a])
      if (joined(b, node)) touched.push_back(node);
  }

  void eliminate(int node) {
    gone_[node] = true;
    const std::vector<int> list = std::move(neighbours_[node]);
    std::vector<int> touched = list;
    for (int other : list) {
      auto& theirs = neighbours_[other];
      theirs.erase(std::lower_bound(theirs.begin(), theirs.end(), node));
    }
    for (std::size_t i = 0; i < list.size(); ++i)
      for (std::size_t j = i + 1; j < list.size(); ++j) {
        if (joined(list[i], list[j])) continue;
        if (fills()) collect_common(list[i], list[j], touched);
        insert(neighbours_[list[i]], list[j]);
        insert(neighbours_[list[j]], list[i]);
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
  std::int64_t cap_;
  Neighbours neighbours_;
  std::vector<std::size_t> sizes_;
  std::vector<int> sweep_;    // of Rule::kSweep: a node's place
  std::vector<int> version_;  // of a node's newest key in the queue
  std::vector<bool> gone_;
  std::priority_queue<Key, std::vector<Key>, std::greater<Key>> queue_;
  EliminationOrder order_;
};

}  // namespace

std::optional<EliminationOrder> find_order(const Instance& instance, std::int64_t cell_cap,
                                           const Deadline& deadline) {
  std::optional<EliminationOrder> best;
  for (Rule rule :
       {Rule::kWeightedMinFill, Rule::kMinFill, Rule::kLeastTable, Rule::kSweep, Rule::kGiven}) {
    // Once there is an order, one that becomes as dear is given up.
    auto order = OrderFinder(instance, rule, best ? best->cells - 1 : cell_cap, deadline).run();
    if (order) best = std::move(order);
  }
  return best;
}

}  // namespace torchalgo::pbqp

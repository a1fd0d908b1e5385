// SPDX-License-Identifier: BSD-3-Clause
#include "planner/pair_elimination.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace torchalgo::planner {
namespace {

using pbqp::Cost;
using pbqp::kForbidden;
using NodeUses = std::vector<std::vector<Uses>>;

// How a pair came about: the eliminated node's value first, then one pair of each message.
struct Step {
  int previous = -1;
  int picked = 0;
};

struct Pair {
  Cost cost = 0;
  Uses use = {};
  int step = -1;
};

// The least uses of pairs that come in the order of cost.
class Frontier {
 public:
  // False if what was added before takes no more.
  bool add(const Uses& use) {
    // Of two resources: the first rises, the second falls.
    const auto after = std::upper_bound(least_.begin(), least_.end(), use,
                                        [](const Uses& a, const Uses& b) { return a[0] < b[0]; });
    if (after != least_.begin() && std::prev(after)->at(1) <= use[1]) return false;
    auto first = after;
    if (first != least_.begin() && std::prev(first)->at(0) == use[0]) --first;
    auto last = after;
    while (last != least_.end() && last->at(1) >= use[1]) ++last;
    least_.insert(least_.erase(first, last), use);
    return true;
  }

 private:
  static_assert(kMostResources == 2);
  std::vector<Uses> least_;
};

// What an eliminated node left: pairs for each choice of values of `nodes`.
struct Message {
  std::vector<int> nodes;
  std::vector<std::vector<Pair>> cells;  // the last node's value varies fastest
};

struct Bucket {
  int node = -1;
  std::vector<int> tables;    // of the instance
  std::vector<int> messages;  // buckets that sent them
  Message sent;
};

class Elimination {
 public:
  Elimination(const pbqp::Instance& instance, const NodeUses& use, const PairLimits& limits,
              const pbqp::Deadline& deadline)
      : instance_(instance), use_(use), limits_(limits), deadline_(deadline) {}

  std::optional<std::vector<int>> run(const pbqp::EliminationOrder& order) {
    place(order);
    value_.assign(instance_.nodes.size(), 0);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (!eliminate(static_cast<int>(b))) return std::nullopt;
    }
    return choice();
  }

 private:
  void place(const pbqp::EliminationOrder& order) {
    position_.assign(instance_.nodes.size(), 0);
    buckets_.resize(order.nodes.size());
    for (std::size_t b = 0; b < order.nodes.size(); ++b) {
      position_[order.nodes[b]] = static_cast<int>(b);
      buckets_[b].node = order.nodes[b];
    }
    for (std::size_t t = 0; t < instance_.pairs.size(); ++t) {
      const pbqp::PairTable& table = instance_.pairs[t];
      buckets_[std::min(position_[table.u], position_[table.v])].tables.push_back(
          static_cast<int>(t));
    }
  }

  int size(int node) const { return static_cast<int>(instance_.nodes[node].size()); }

  std::vector<int> neighbours(const Bucket& bucket) const {
    std::vector<int> nodes;
    for (const int t : bucket.tables) {
      const pbqp::PairTable& table = instance_.pairs[t];
      nodes.push_back(table.u == bucket.node ? table.v : table.u);
    }
    for (const int m : bucket.messages) {
      for (const int node : buckets_[m].sent.nodes) {
        if (node != bucket.node) nodes.push_back(node);
      }
    }
    std::sort(nodes.begin(), nodes.end(),
              [&](int a, int b) { return position_[a] < position_[b]; });
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    return nodes;
  }

  bool eliminate(int index) {
    Bucket& bucket = buckets_[index];
    bucket.sent.nodes = neighbours(bucket);
    for (const int node : bucket.sent.nodes) value_[node] = 0;
    do {
      std::vector<Pair> cell;
      for (int a = 0; a < size(bucket.node); ++a) add_value(bucket, a, cell);
      keep_best(cell);
      pairs_ += static_cast<std::int64_t>(cell.size()) + 1;
      bucket.sent.cells.push_back(std::move(cell));
      if (is_too_large_ || pairs_ > limits_.pair_cap) return false;
      if ((++looks_ & 63) == 0 && deadline_.expired()) return false;
    } while (advance(bucket.sent.nodes));
    // Parts that share no table share the limit, so one part's pairs go to the next one.
    const std::size_t next =
        bucket.sent.nodes.empty() ? index + 1 : position_[bucket.sent.nodes.front()];
    if (next < buckets_.size()) buckets_[next].messages.push_back(index);
    return true;
  }

  // The next choice of values of `nodes`; false after the last.
  bool advance(const std::vector<int>& nodes) {
    for (std::size_t i = nodes.size(); i-- > 0;) {
      if (++value_[nodes[i]] < size(nodes[i])) return true;
      value_[nodes[i]] = 0;
    }
    return false;
  }

  void add_value(const Bucket& bucket, int a, std::vector<Pair>& cell) {
    value_[bucket.node] = a;
    Cost cost = instance_.nodes[bucket.node][a];
    for (const int t : bucket.tables) {
      const pbqp::PairTable& table = instance_.pairs[t];
      cost = pbqp::add(cost, table.cells[value_[table.u] * size(table.v) + value_[table.v]]);
    }
    if (cost == kForbidden) return;
    std::vector<Pair> pairs = {{cost, use_[bucket.node][a], add_step({-1, a})}};
    for (const int m : bucket.messages) pairs = join(pairs, cell_of(buckets_[m].sent));
    cell.insert(cell.end(), pairs.begin(), pairs.end());
  }

  const std::vector<Pair>& cell_of(const Message& message) const {
    std::size_t index = 0;
    for (const int node : message.nodes) index = index * size(node) + value_[node];
    return message.cells[index];
  }

  int add_step(Step step) {
    steps_.push_back(step);
    return static_cast<int>(steps_.size()) - 1;
  }

  std::vector<Pair> join(const std::vector<Pair>& pairs, const std::vector<Pair>& message) {
    const auto count = static_cast<int>(message.size());
    std::vector<Pair> joined;
    is_too_large_ |=
        static_cast<std::int64_t>(pairs.size() * message.size() + steps_.size()) > limits_.pair_cap;
    if (is_too_large_) return joined;
    joined.reserve(pairs.size() * message.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      for (int j = 0; j < count; ++j) {
        joined.push_back({pairs[i].cost + message[j].cost, pairs[i].use + message[j].use,
                          static_cast<int>(i) * count + j});
      }
    }
    keep_best(joined);
    for (Pair& pair : joined)
      pair.step = add_step({pairs[pair.step / count].step, pair.step % count});
    return joined;
  }

  // Within the limits, and none undercut: cost rises, use falls.
  void keep_best(std::vector<Pair>& pairs) const {
    if (pairs.empty()) return;
    const auto weight = [&](const Pair& pair) {
      Cost sum = limits_.per_cost * pair.cost;
      for (std::size_t r = 0; r < kMostResources; ++r) sum += limits_.per_use[r] * pair.use[r];
      return sum;
    };
    Cost least = kForbidden;
    for (const Pair& pair : pairs) least = std::min(least, weight(pair));
    std::erase_if(pairs, [&](const Pair& pair) {
      return !is_within(pair.use, limits_.use) || weight(pair) - least > limits_.excess;
    });
    std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
      return std::tie(a.cost, a.use, a.step) < std::tie(b.cost, b.use, b.step);
    });
    std::size_t kept = 0;
    Frontier frontier;
    for (const Pair& pair : pairs) {
      if (frontier.add(pair.use)) pairs[kept++] = pair;
    }
    pairs.resize(kept);
  }

  // From the last bucket back: its values tell which pair of each message was taken.
  std::vector<int> choice() {
    std::vector<int> picked(buckets_.size(), 0);
    for (std::size_t b = buckets_.size(); b-- > 0;) {
      const Bucket& bucket = buckets_[b];
      const std::vector<Pair>& cell = cell_of(bucket.sent);
      if (cell.empty()) return {};
      int step = cell[picked[b]].step;
      for (std::size_t m = bucket.messages.size(); m-- > 0; step = steps_[step].previous)
        picked[bucket.messages[m]] = steps_[step].picked;
      value_[bucket.node] = steps_[step].picked;
    }
    return value_;
  }

  const pbqp::Instance& instance_;
  const NodeUses& use_;
  const PairLimits& limits_;
  const pbqp::Deadline& deadline_;
  std::vector<Bucket> buckets_;
  std::vector<int> position_;  // of each node in the order
  std::vector<int> value_;     // of each node, while walking through cells
  std::vector<Step> steps_;
  std::int64_t pairs_ = 0;
  bool is_too_large_ = false;
  int looks_ = 0;
};

}  // namespace

std::optional<std::vector<int>> eliminate_pairs(const pbqp::Instance& instance, const NodeUses& use,
                                                const pbqp::EliminationOrder& order,
                                                const PairLimits& limits,
                                                const pbqp::Deadline& deadline) {
  return Elimination(instance, use, limits, deadline).run(order);
}

}  // namespace torchalgo::planner

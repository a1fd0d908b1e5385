// SPDX-License-Identifier: BSD-3-Clause
#include "planner/label_elimination.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace torchalgo::planner {
namespace {

using pbqp::Cost;
using pbqp::kForbidden;
using NodeUse = std::vector<std::vector<ResourceUse>>;

// Tells how a label was made: a list that begins with the eliminated node's value and goes on with
// the index of the label taken from each message.
struct Backpointer {
  int previous = -1;
  int picked = 0;
};

// One way to choose the values of all nodes eliminated so far.
struct Label {
  Cost cost = 0;
  ResourceUse use = {};
  int backpointer = -1;  // the end of its list in backpointers_
};

// Tells which labels are dominated. They must be added in the order of cost.
class DominanceFront {
 public:
  // Returns false if a label that was added before uses no more of anything.
  bool add(const ResourceUse& use) {
    // least_ is sorted: the use of resource 0 rises, that of resource 1 falls.
    const auto after =
        std::upper_bound(least_.begin(), least_.end(), use,
                         [](const ResourceUse& a, const ResourceUse& b) { return a[0] < b[0]; });
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
  std::vector<ResourceUse> least_;
};

// The table that an eliminated node leaves: labels for each combination of values of `nodes`.
struct Message {
  std::vector<int> nodes;
  std::vector<std::vector<Label>> cells;  // the last node's value varies fastest
};

// An eliminated node with the tables that have it as their first node in the order.
struct Bucket {
  int node = -1;
  std::vector<int> tables;    // of the instance
  std::vector<int> messages;  // buckets that sent them
  Message sent;
};

class LabelElimination {
 public:
  LabelElimination(const pbqp::Instance& instance, const NodeUse& use, const LabelLimits& limits,
                   const pbqp::Deadline& deadline)
      : instance_(instance), use_(use), limits_(limits), deadline_(deadline) {}

  std::optional<std::vector<int>> run(const pbqp::EliminationOrder& order) {
    fill_buckets(order);
    value_.assign(instance_.nodes.size(), 0);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (!eliminate(static_cast<int>(b))) return std::nullopt;
    }
    return choice();
  }

 private:
  void fill_buckets(const pbqp::EliminationOrder& order) {
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
      std::vector<Label> cell;
      for (int a = 0; a < size(bucket.node); ++a) add_value(bucket, a, cell);
      remove_dominated(cell);
      label_count_ += static_cast<std::int64_t>(cell.size()) + 1;
      bucket.sent.cells.push_back(std::move(cell));
      if (is_too_large_ || label_count_ > limits_.label_cap) return false;
      if ((++cells_since_check_ & 63) == 0 && deadline_.expired()) return false;
    } while (advance(bucket.sent.nodes));
    // Components of the graph share no table, but they share the limits. So the labels of one
    // component go to the next one.
    const std::size_t next =
        bucket.sent.nodes.empty() ? index + 1 : position_[bucket.sent.nodes.front()];
    if (next < buckets_.size()) buckets_[next].messages.push_back(index);
    return true;
  }

  // Goes to the next combination of values of `nodes`. Returns false after the last one.
  bool advance(const std::vector<int>& nodes) {
    for (std::size_t i = nodes.size(); i-- > 0;) {
      if (++value_[nodes[i]] < size(nodes[i])) return true;
      value_[nodes[i]] = 0;
    }
    return false;
  }

  // Adds the labels of value `a` of the bucket's node, for the present values of its neighbours.
  void add_value(const Bucket& bucket, int a, std::vector<Label>& cell) {
    value_[bucket.node] = a;
    Cost cost = instance_.nodes[bucket.node][a];
    for (const int t : bucket.tables) {
      const pbqp::PairTable& table = instance_.pairs[t];
      cost = pbqp::add(cost, table.cells[value_[table.u] * size(table.v) + value_[table.v]]);
    }
    if (cost == kForbidden) return;
    std::vector<Label> labels = {{cost, use_[bucket.node][a], add_backpointer({-1, a})}};
    for (const int m : bucket.messages) labels = combine(labels, cell_of(buckets_[m].sent));
    cell.insert(cell.end(), labels.begin(), labels.end());
  }

  const std::vector<Label>& cell_of(const Message& message) const {
    std::size_t index = 0;
    for (const int node : message.nodes) index = index * size(node) + value_[node];
    return message.cells[index];
  }

  int add_backpointer(Backpointer backpointer) {
    backpointers_.push_back(backpointer);
    return static_cast<int>(backpointers_.size()) - 1;
  }

  // Returns the sums of each label with each label of a message.
  std::vector<Label> combine(const std::vector<Label>& labels, const std::vector<Label>& message) {
    const auto count = static_cast<int>(message.size());
    std::vector<Label> combined;
    is_too_large_ |= static_cast<std::int64_t>(labels.size() * message.size() +
                                               backpointers_.size()) > limits_.label_cap;
    if (is_too_large_) return combined;
    combined.reserve(labels.size() * message.size());
    for (std::size_t i = 0; i < labels.size(); ++i) {
      for (int j = 0; j < count; ++j) {
        combined.push_back({labels[i].cost + message[j].cost, labels[i].use + message[j].use,
                            static_cast<int>(i) * count + j});
      }
    }
    remove_dominated(combined);
    for (Label& label : combined)
      label.backpointer = add_backpointer(
          {labels[label.backpointer / count].backpointer, label.backpointer % count});
    return combined;
  }

  // Removes dominated labels and those beyond the limits. The rest is sorted by cost.
  void remove_dominated(std::vector<Label>& labels) const {
    if (labels.empty()) return;
    const auto lagrangian = [&](const Label& label) {
      Cost sum = limits_.cost_multiplier * label.cost;
      for (std::size_t r = 0; r < kMostResources; ++r)
        sum += limits_.use_multipliers[r] * label.use[r];
      return sum;
    };
    Cost least = kForbidden;
    for (const Label& label : labels) least = std::min(least, lagrangian(label));
    std::erase_if(labels, [&](const Label& label) {
      return !is_within(label.use, limits_.use) || lagrangian(label) - least > limits_.max_gap;
    });
    std::sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) {
      return std::tie(a.cost, a.use, a.backpointer) < std::tie(b.cost, b.use, b.backpointer);
    });
    std::size_t kept = 0;
    DominanceFront front;
    for (const Label& label : labels) {
      if (front.add(label.use)) labels[kept++] = label;
    }
    labels.resize(kept);
  }

  // Follows the backpointers from the last bucket to the first.
  std::vector<int> choice() {
    std::vector<int> picked(buckets_.size(), 0);
    for (std::size_t b = buckets_.size(); b-- > 0;) {
      const Bucket& bucket = buckets_[b];
      const std::vector<Label>& cell = cell_of(bucket.sent);
      if (cell.empty()) return {};
      int backpointer = cell[picked[b]].backpointer;
      for (std::size_t m = bucket.messages.size(); m-- > 0;
           backpointer = backpointers_[backpointer].previous)
        picked[bucket.messages[m]] = backpointers_[backpointer].picked;
      value_[bucket.node] = backpointers_[backpointer].picked;
    }
    return value_;
  }

  const pbqp::Instance& instance_;
  const NodeUse& use_;
  const LabelLimits& limits_;
  const pbqp::Deadline& deadline_;
  std::vector<Bucket> buckets_;
  std::vector<int> position_;  // of each node in the order
  std::vector<int> value_;     // of each node, while walking through cells
  std::vector<Backpointer> backpointers_;
  std::int64_t label_count_ = 0;
  bool is_too_large_ = false;
  int cells_since_check_ = 0;
};

}  // namespace

std::optional<std::vector<int>> eliminate_with_labels(const pbqp::Instance& instance,
                                                      const NodeUse& use,
                                                      const pbqp::EliminationOrder& order,
                                                      const LabelLimits& limits,
                                                      const pbqp::Deadline& deadline) {
  return LabelElimination(instance, use, limits, deadline).run(order);
}

}  // namespace torchalgo::planner

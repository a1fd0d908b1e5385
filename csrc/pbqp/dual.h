// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "pbqp/instance.h"

namespace torchalgo::pbqp {

/// The bounds that a set of messages proves about an instance.
struct DualValue {
  Cost lower_bound = 0;                         // no choice is cheaper
  std::vector<std::vector<Cost>> value_bounds;  // no choice with value a of node i is cheaper
};

/// Messages that move integer costs between tables and nodes without changing the cost of any
/// choice. The sum of all minima is then a lower bound for any messages. So rounding makes the
/// bound weaker, but never wrong.
/// Source: Kolmogorov 2006, IEEE TPAMI 28(10), pp. 1568-1583 (TRW-S, the order of the updates).
class Dual {
 public:
  explicit Dual(const Instance& instance);

  /// Makes one forward and one backward pass. The bound rises, except for rounding.
  void pass();

  [[nodiscard]] DualValue evaluate() const;

  /// Returns two lists per pair of the instance: the costs that its table gives to the values of u
  /// and of v.
  [[nodiscard]] const std::vector<std::vector<Cost>>& messages() const { return messages_; }

  /// Returns a choice that is made node by node from the messages, and then improved one node at a
  /// time.
  [[nodiscard]] std::vector<int> round() const;

 private:
  struct Arc {  // a table seen from one of its nodes
    int other = 0;
    int in = 0, out = 0;      // messages to this node and to `other`
    std::vector<Cost> cells;  // cells[b * size(this) + a]; may be kForbidden
  };

  /// The order of choices: first by the number of forbidden picks, then by cost.
  struct Score {
    int forbidden = 0;
    Cost cost = 0;
    auto operator<=>(const Score&) const = default;
    void count(Cost cell);
  };

  int node_count() const { return static_cast<int>(nodes_.size()); }
  std::vector<Cost> marginal(int node) const;
  void sweep(bool forward);
  void pull(const Arc& arc);
  int best_value(int node, const std::vector<int>& choice, int placed) const;
  void improve(std::vector<int>& choice) const;

  Cost constant_;
  Cost cap_ = 0;  // of a node cost, a cell and a message, so that no sum at a node overflows
  std::vector<std::vector<Cost>> nodes_;
  std::vector<std::vector<Arc>> arcs_;  // per node, ascending by the other node
  std::vector<std::vector<Cost>> messages_;
};

}  // namespace torchalgo::pbqp

// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/bound.h"

#include <algorithm>
#include <utility>

#include "pbqp/dual.h"

namespace torchalgo::pbqp {
namespace {

constexpr int kPassesPerLook = 5;     // an evaluation takes about as long as a pass
constexpr double kStallShare = 1e-3;  // of the gap: the search ends if an evaluation gains less

/// Keeps the messages of `dual` if their bound is the best so far. The same messages prove the
/// bounds of all values.
void take_value(const Dual& dual, Bound& bound) {
  DualValue value = dual.evaluate();
  if (!bound.messages.empty() && value.lower_bound < bound.lower_bound) return;
  bound.lower_bound = value.lower_bound;
  bound.value_bounds = std::move(value.value_bounds);
  bound.messages = dual.messages();
}

void take_choice(const Instance& instance, std::vector<int> choice, Bound& bound) {
  const Cost cost = cost_of(instance, choice);
  if (cost >= bound.cost) return;
  bound.cost = cost;
  bound.choice = std::move(choice);
}

/// Returns the cost of each value of `node`, given the choice of the nodes before it. It is
/// kForbidden for a forbidden value.
std::vector<Cost> costs_beside(const Instance& instance,
                               const std::vector<const PairTable*>& tables, int node,
                               const std::vector<int>& choice) {
  std::vector<Cost> costs = instance.nodes[node];
  for (const PairTable* pair : tables) {
    const Cost* row = &pair->cells[choice[pair->u] * costs.size()];
    for (std::size_t b = 0; b < costs.size(); ++b) costs[b] = add(costs[b], row[b]);
  }
  return costs;
}

}  // namespace

Bound bound_at_once(const Instance& instance) {
  Bound bound;
  bound.lower_bound = instance.constant;
  std::vector<std::vector<const PairTable*>> from_below(instance.nodes.size());
  for (const PairTable& pair : instance.pairs) {
    bound.lower_bound =
        add(bound.lower_bound, *std::min_element(pair.cells.begin(), pair.cells.end()));
    from_below[pair.v].push_back(&pair);
  }
  std::vector<int> choice;
  for (int i = 0; i < static_cast<int>(instance.nodes.size()); ++i) {
    const std::vector<Cost>& own = instance.nodes[i];
    bound.lower_bound = add(bound.lower_bound, *std::min_element(own.begin(), own.end()));
    const std::vector<Cost> costs = costs_beside(instance, from_below[i], i, choice);
    choice.push_back(
        static_cast<int>(std::min_element(costs.begin(), costs.end()) - costs.begin()));
  }
  for (const auto& costs : instance.nodes)
    bound.value_bounds.emplace_back(costs.size(), bound.lower_bound);
  take_choice(instance, std::move(choice), bound);
  return bound;
}

Bound find_bound(const Instance& instance, int passes, Cost limit, const Deadline& deadline) {
  if (deadline.expired()) return bound_at_once(instance);
  Bound bound;
  Dual dual(instance);
  for (int done = 0; done < passes;) {
    const Cost before = bound.lower_bound;
    do {
      dual.pass();
    } while (++done % kPassesPerLook != 0 && done < passes && !deadline.expired());
    take_value(dual, bound);
    take_choice(instance, dual.round(), bound);
    const Cost goal = std::min(limit, bound.cost);
    if (bound.lower_bound >= goal || deadline.expired()) break;
    const double gain = static_cast<double>(bound.lower_bound - before);
    if (gain < kStallShare * static_cast<double>(goal - bound.lower_bound)) break;
  }
  // Without messages the bound is at least the constant. Rounding in the messages can lower it a
  // little.
  if (bound.lower_bound < instance.constant) {
    bound.messages.clear();
    take_value(Dual(instance), bound);
  }
  return bound;
}

}  // namespace torchalgo::pbqp

// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/bound.h"

#include <algorithm>
#include <utility>

#include "pbqp/dual.h"

namespace torchalgo::pbqp {
namespace {

constexpr int kPassesPerLook = 5;     // evaluating costs about as much as a pass
constexpr double kStallShare = 1e-3;  // of the gap: less gain than this per look is a stall

void take_value_bounds(DualValue value, Bound& bound) {
  bound.lower_bound = std::max(bound.lower_bound, value.lower_bound);
  if (bound.value_bounds.empty()) {
    bound.value_bounds = std::move(value.value_bounds);
    return;
  }
  for (std::size_t i = 0; i < bound.value_bounds.size(); ++i)
    for (std::size_t a = 0; a < bound.value_bounds[i].size(); ++a)
      bound.value_bounds[i][a] = std::max(bound.value_bounds[i][a], value.value_bounds[i][a]);
}

void take_choice(const Instance& instance, std::vector<int> choice, Bound& bound) {
  const Cost cost = cost_of(instance, choice);
  if (cost >= bound.cost) return;
  bound.cost = cost;
  bound.choice = std::move(choice);
}

}  // namespace

Bound find_bound(const Instance& instance, int passes, Cost limit, const Deadline& deadline) {
  Bound bound;
  Dual dual(instance);
  for (int done = 0; done < passes;) {
    const Cost before = bound.lower_bound;
    do {
      dual.pass();
    } while (++done % kPassesPerLook != 0 && done < passes && !deadline.expired());
    take_value_bounds(dual.evaluate(), bound);
    take_choice(instance, dual.round(), bound);
    const Cost goal = std::min(limit, bound.cost);
    if (bound.lower_bound >= goal || deadline.expired()) break;
    const double gain = static_cast<double>(bound.lower_bound - before);
    if (gain < kStallShare * static_cast<double>(goal - bound.lower_bound)) break;
  }
  // Some value of every node is taken, so the least of a node's bounds is one for the instance.
  for (const auto& bounds : bound.value_bounds)
    bound.lower_bound =
        std::max(bound.lower_bound, *std::min_element(bounds.begin(), bounds.end()));
  return bound;
}

}  // namespace torchalgo::pbqp

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/instance.h"

namespace torchalgo::pbqp {

/// Proven lower bounds, and the best choice met while finding them.
struct Bound {
  Cost lower_bound = 0;                         // no choice is cheaper
  std::vector<std::vector<Cost>> value_bounds;  // no choice with value a of node i is cheaper
  std::vector<std::vector<Cost>> messages;      // that prove both, as Dual::messages; empty: none
  Cost cost = kForbidden;                       // of `choice`
  std::vector<int> choice;                      // empty if none was found
};

/// Raises the dual bound by up to `passes` passes; stops once it reaches `limit` or the cost found,
/// when it stalls, or at the deadline; without any time it is bound_at_once.
[[nodiscard]] Bound find_bound(const Instance& instance, int passes, Cost limit,
                               const Deadline& deadline);

/// The sum of all minima, without messages, and a choice made node by node: one look at each cost.
[[nodiscard]] Bound bound_at_once(const Instance& instance);

}  // namespace torchalgo::pbqp

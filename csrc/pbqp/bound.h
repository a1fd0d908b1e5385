// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/instance.h"

namespace torchalgo::pbqp {

/// Proven lower bounds, and the best choice found on the way.
struct Bound {
  Cost lower_bound = 0;                         // no choice is cheaper
  std::vector<std::vector<Cost>> value_bounds;  // no choice with value a of node i is cheaper
  std::vector<std::vector<Cost>> messages;  // prove both bounds, as Dual::messages; may be empty
  Cost cost = kForbidden;                   // of `choice`
  std::vector<int> choice;                  // empty if none was found
};

/// Raises the dual bound by up to `passes` passes. It stops if the bound reaches `limit` or the
/// cost of the choice found, if the bound stalls, or at the deadline. Returns bound_at_once() if
/// there is no time at all.
[[nodiscard]] Bound find_bound(const Instance& instance, int passes, Cost limit,
                               const Deadline& deadline);

/// Returns the sum of all minima as the bound, without messages, and a choice made node by node. It
/// reads each cost once.
[[nodiscard]] Bound bound_at_once(const Instance& instance);

}  // namespace torchalgo::pbqp

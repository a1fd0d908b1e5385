// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/order.h"

namespace torchalgo::pbqp {

struct Exact {
  Cost cost = kForbidden;   // kForbidden: proven infeasible
  std::vector<int> choice;  // empty if infeasible
};

/// Returns the optimum by bucket elimination, which generalizes R0-R2 to any number of neighbours.
/// Each node in turn is minimised out of the sum of all tables that hold it. Tables have one cell
/// per combination of classes of values (pbqp/classes.h). The work is `cells` of a class order.
/// Returns nullopt if the deadline passes. Source: Dechter 1999, Artificial Intelligence 113, pp.
/// 41-85.
[[nodiscard]] std::optional<Exact> eliminate(const Instance& instance,
                                             const EliminationOrder& order,
                                             const Deadline& deadline = Deadline::never());

}  // namespace torchalgo::pbqp

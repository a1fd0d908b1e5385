// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/order.h"

namespace torchalgo::pbqp {

/// Returns, for each value of each node, the least cost of a choice with this value, or kForbidden
/// if there is none. It eliminates towards the last node of `order` and sends messages back from
/// it. `instance` must be connected. Returns nullopt if a table exceeds `table_cap` cells or the
/// deadline passes.
/// Source: Kask, Dechter, Larrosa & Dechter 2005, Artificial Intelligence 166, pp. 165-193.
[[nodiscard]] std::optional<std::vector<std::vector<Cost>>> exact_marginals(
    const Instance& instance, const EliminationOrder& order, std::int64_t table_cap,
    const Deadline& deadline);

}  // namespace torchalgo::pbqp

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/instance.h"

namespace torchalgo::pbqp {

struct EliminationOrder {
  std::vector<int> nodes;
  std::int64_t cells = 0;  // of all tables: the eliminated node's values times its neighbours', or
                           // times the classes of them that its tables tell apart
  int width = 0;           // most neighbours of a node when its turn comes
};

/// The cheapest of several orders (greedy: min-fill, min-fill weighted by table size, least table;
/// fixed: a breadth-first sweep, the nodes as given), or nothing if none keeps within `cell_cap`
/// or is found in time. Ties go to the lowest node.
/// Source: Dechter 1999, Artificial Intelligence 113, pp. 41-85.
[[nodiscard]] std::optional<EliminationOrder> find_order(
    const Instance& instance, std::int64_t cell_cap, const Deadline& deadline = Deadline::never());

/// Likewise, with tables as small as `eliminate` makes them: over classes of values.
[[nodiscard]] std::optional<EliminationOrder> find_class_order(
    const Instance& instance, std::int64_t cell_cap, const Deadline& deadline = Deadline::never());

}  // namespace torchalgo::pbqp

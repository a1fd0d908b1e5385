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
  // Cells of all tables: the eliminated node's values times those of its neighbours, or times the
  // classes of them that its tables distinguish.
  std::int64_t cells = 0;
  int width = 0;  // the most neighbours of a node when it is eliminated
};

/// Returns the cheapest of several orders. The greedy ones are min-fill, min-fill weighted by table
/// size, and least table. The fixed ones are a breadth-first sweep and the nodes as given. Returns
/// nullopt if no order keeps within `cell_cap` or none is found in time. Ties go to the lowest
/// node.
/// Source: Dechter 1999, Artificial Intelligence 113, pp. 41-85.
[[nodiscard]] std::optional<EliminationOrder> find_order(
    const Instance& instance, std::int64_t cell_cap, const Deadline& deadline = Deadline::never());

/// Returns the cheapest order if tables are over classes of values, as those of eliminate().
[[nodiscard]] std::optional<EliminationOrder> find_class_order(
    const Instance& instance, std::int64_t cell_cap, const Deadline& deadline = Deadline::never());

}  // namespace torchalgo::pbqp

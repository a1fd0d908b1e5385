// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/instance.h"
#include "pbqp/solve.h"

namespace torchalgo::pbqp {

/// Returns the least cost of `problem` with each alternative of each node. It is exact for
/// connected parts whose tables stay below `table_cap` cells. For other parts it is a lower bound
/// from messages. If the problem is solved and time allows, the best other alternative of each node
/// is exact in these parts too: the problem is solved without the chosen one. `source` is the
/// problem without its forbidden values.
[[nodiscard]] std::vector<std::vector<Marginal>> find_marginals(const Restricted& source,
                                                                const Problem& problem,
                                                                const Solution& solution,
                                                                std::int64_t table_cap,
                                                                const Deadline& deadline);

}  // namespace torchalgo::pbqp

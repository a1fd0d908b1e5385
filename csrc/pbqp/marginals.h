// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "pbqp/deadline.h"
#include "pbqp/instance.h"
#include "pbqp/solve.h"

namespace torchalgo::pbqp {

/// What `problem` costs at best with each alternative of each node. Exact for connected parts whose
/// tables stay below `table_cap` cells. For others: lower bounds from messages, and of a solved
/// problem the best other alternative of each node exactly, by a solution without the chosen one,
/// as far as time allows. `source` is the problem without its forbidden values.
[[nodiscard]] std::vector<std::vector<Marginal>> find_marginals(const Restricted& source,
                                                                const Problem& problem,
                                                                const Solution& solution,
                                                                std::int64_t table_cap,
                                                                const Deadline& deadline);

}  // namespace torchalgo::pbqp

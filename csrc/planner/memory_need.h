// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "ir/candidates.h"
#include "ir/graph.h"

namespace torchalgo {

/// Returns, for each candidate, a lower bound of the bytes of all tensors and workspaces that exist
/// while it runs: of its inputs and results in its layouts, of values that later nodes read, and of
/// its workspace. Tensors of the caller, which are inputs and outputs of the graph, do not count,
/// nor do sizes that are not known. Values that may share memory count as the largest of them.
[[nodiscard]] std::vector<std::vector<std::int64_t>> memory_need(const Graph& graph,
                                                                 const Candidates& candidates);

/// Returns the same for changes of layout, which may belong to any value of their sizes.
[[nodiscard]] std::vector<std::int64_t> memory_need(const Graph& graph,
                                                    const std::vector<Candidate>& transforms);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "torchscript/graph_view.h"
#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Brings `graph`, which must not have run, into the form that import_graph reads. For inputs of
/// the same ranks it computes the same function as before:
/// - Calls are inlined.
/// - In-place ops and growing lists become functional ops if no other code sees the change.
/// - Branches on a tensor's rank and loops of a small fixed count are resolved, and branches on
///   sizes, too. A call that would take another branch fails (size_branches.h).
/// - The passes of passes.h name what models write down, and join what one call can compute.
///
/// @param arguments  of forward, self first.
/// @return  the tensors that a run of the new graph on `arguments` makes.
[[nodiscard]] SeenTensors simplify(const script::Graph& graph,
                                   const std::vector<c10::IValue>& arguments);

}  // namespace torchalgo

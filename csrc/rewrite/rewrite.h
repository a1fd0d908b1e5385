// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <vector>

#include "import/import.h"
#include "ir/plan.h"

namespace torchalgo {

/// A module that runs a plan.
struct Rewritten {
  torch::jit::Module module;
  /// By node of forward's graph: the node of ImportedGraph::graph that PyTorch still runs there, or
  /// -1. Nodes that the rewriting made are -1, and so are nodes that compute no tensors.
  std::vector<int> origins;
};

/// Returns a new module whose forward runs the primitives of `plan`. `imported` is not changed. The
/// new module shares its weights.
/// @throws Error  if the plan was made for another model, which has other names or problems.
[[nodiscard]] Rewritten rewrite_graph(const ImportedGraph& imported, const Plan& plan);

}  // namespace torchalgo

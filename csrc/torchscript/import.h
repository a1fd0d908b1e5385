// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <vector>

#include "ir/graph.h"

namespace torchalgo {

/// A frozen module with its data flow. `nodes`, `inner` and `values` run parallel to graph.nodes,
/// graph.nodes and graph.values and point into the graph of `module`'s forward.
struct ImportedGraph {
  torch::jit::Module module;
  Graph graph;
  std::vector<torch::jit::Node*> nodes;
  std::vector<std::vector<torch::jit::Node*>> inner;  // earlier nodes that a node stands for
  std::vector<torch::jit::Value*> values;
};

/// Reads the forward of a frozen module: every tensor op at the top level becomes a node with the
/// concrete shapes that `inputs` give it. What cannot be planned is opaque, with a note if a user
/// would ask why. The module is not run by the executor (a run would pin the graph it has now) and
/// its graph not changed, but for the removal of in-place ops.
///
/// @param inputs  forward's arguments without self.
/// @throws Error  if the module is not frozen or not in eval mode, if it has no forward, if inputs
/// do not fit.
[[nodiscard]] ImportedGraph import_graph(const torch::jit::Module& frozen,
                                         const std::vector<c10::IValue>& inputs);

/// The same model with its f32 convolutions as tf32 ones: tensors of float whose products may be
/// rounded to TF32, as torch.backends.cudnn.allow_tf32 lets them on CUDA.
[[nodiscard]] ImportedGraph with_tf32_convolutions(ImportedGraph imported);

}  // namespace torchalgo

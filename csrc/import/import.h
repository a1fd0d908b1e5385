// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <vector>

#include "ir/graph.h"

namespace torchalgo {

/// A frozen module with its data flow. The elements of `nodes` and `inner` belong to those of
/// graph.nodes, the elements of `values` to those of graph.values. They point into the graph of
/// `module`'s forward.
struct ImportedGraph {
  torch::jit::Module module;
  Graph graph;
  std::vector<torch::jit::Node*> nodes;
  std::vector<std::vector<torch::jit::Node*>> inner;  // earlier nodes whose work a node includes
  std::vector<torch::jit::Value*> values;
};

/// Reads the forward of a frozen module. Each tensor op at the top level becomes a node with the
/// concrete shapes that `inputs` give it. An op that cannot be planned is opaque. It gets a note if
/// a user would expect it to be planned. TorchScript's executor does not run the module, since a
/// run would fix its present graph. The graph stays the same, except that in-place ops are removed.
///
/// @param inputs  forward's arguments without self.
/// @throws Error  if the module is not frozen or not in eval mode, if it has no forward, if inputs
/// do not fit.
[[nodiscard]] ImportedGraph import_graph(const torch::jit::Module& frozen,
                                         const std::vector<c10::IValue>& inputs);

/// Returns the same model with its f32 convolutions as tf32 problems. Their tensors are float, but
/// products may be rounded to TF32, as torch.backends.cudnn.allow_tf32 permits on CUDA.
[[nodiscard]] ImportedGraph with_tf32_convolutions(ImportedGraph imported);

}  // namespace torchalgo

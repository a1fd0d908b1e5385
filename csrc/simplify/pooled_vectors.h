// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Keeps a pooled tensor [n, c, 1, 1] in this shape where a model makes a matrix [n, c] of it for
/// linear layers and activations, and then brings it back, as squeeze-and-excitation blocks do:
///
///   y = self.pool(x).view(b, c)
///   y = self.fc(y).view(b, c, 1, 1)
///   return x * y.expand_as(x)
///
/// The linear layers become 1x1 convolutions, and `expand_as` is removed if only products with `x`
/// read it. Sums and products of such matrices keep this shape, too. Views of such a tensor that
/// change nothing are removed. The new graph computes the same for all input sizes.
///
/// @param seen  the tensors of a run of this graph.
/// @return  true if the graph has changed.
bool keep_pooled_vectors(std::shared_ptr<torch::jit::Graph>& graph, const SeenTensors& seen);

}  // namespace torchalgo

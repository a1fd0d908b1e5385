// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Replaces in-place ops by their functional twins where nobody outside the graph can see the
/// change: `x.add_(y)` becomes `add(x, y)`, and what reads x later reads the sum. Views of x and
/// lists that hold it are made again if they are read after the change.
///
/// A tensor stays as it is in these cases: it may be an input or a weight, a branch or a loop reads
/// it, it is written through a view and then read as a whole, or what is read after the change may
/// be its memory or a copy, as the result of reshape.
///
/// Torch's own pass, RemoveTensorMutation, gives up as soon as a list holds the tensor.
/// @param seen  the tensors of a run of this graph.
/// @return  true if the graph has changed.
bool functionalize(torch::jit::Graph& graph, const SeenTensors& seen);

}  // namespace torchalgo

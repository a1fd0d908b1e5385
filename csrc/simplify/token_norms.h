// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Replaces the batch norm of tokens [n, t, c], which models write as
/// bn(x.flatten(0, 1)).reshape_as(x), by a product and a sum with one constant per channel.
///
/// @param seen  the tensors of a run of this graph.
/// @return  true if the graph has changed.
bool name_token_norms(std::shared_ptr<torch::jit::Graph>& graph, const SeenTensors& seen);

}  // namespace torchalgo

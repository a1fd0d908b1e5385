// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Replaces the ways in which models write operations on channels by ops that import_graph can
/// read:
/// - view, transpose, view becomes channel_shuffle.
/// - The parts of a chunk or split become narrows. The number of channels is read from `seen`.
/// - A cat of all parts of a tensor becomes that tensor.
/// - A slice that takes everything is removed.
///
/// @param seen  the tensors that a run of `graph` makes.
/// @return  true if the graph changed. `seen` does not describe it any more in this case.
[[nodiscard]] bool simplify_channel_ops(std::shared_ptr<torch::jit::Graph>& graph,
                                        const SeenTensors& seen);

}  // namespace torchalgo

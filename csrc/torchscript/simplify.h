// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <vector>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Brings `graph`, which has not run, into the form that import reads: calls inlined, in-place ops
/// and growing lists replaced by functions where nobody can tell, branches on a tensor's rank and
/// loops of a fixed small count resolved, shuffled and split channels named (channel_ops.h). The
/// function it computes stays the same for inputs of
/// these ranks.
///
/// @param arguments  self first.
/// @return  its tensors on `arguments`.
[[nodiscard]] SeenTensors simplify(std::shared_ptr<torch::jit::Graph>& graph,
                                   const std::vector<c10::IValue>& arguments);

}  // namespace torchalgo

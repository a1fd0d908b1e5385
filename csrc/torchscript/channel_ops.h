// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Says what models do to channels by ops of one tensor that import reads: a shuffle written as
/// view, transpose, view becomes channel_shuffle; the parts of a chunk or split become narrows,
/// which read `seen` channels, and are forgotten where a cat joins all of them again; a slice that
/// takes everything goes.
///
/// @param seen  the tensors of `graph`.
/// @return  whether the graph changed: then `seen` no longer describes it.
[[nodiscard]] bool simplify_channel_ops(std::shared_ptr<torch::jit::Graph>& graph,
                                        const SeenTensors& seen);

}  // namespace torchalgo

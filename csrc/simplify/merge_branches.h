// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Makes one convolution of a sum or difference of convolutions that read the same tensor, as
/// RepVGG, MobileOne and their relatives are trained: 3x3 + 1x1 + batch norm. The convolutions must
/// have the same stride and groups and no dilation, and their filters must have a common centre.
/// The tensor itself, or a batch norm of it, counts as a convolution with a 1x1 filter. The result
/// has the filter of the largest one, so it computes as much as this one did alone.
///
/// Weights are added in double precision.
/// @return whether the graph has changed.
bool merge_branches(std::shared_ptr<torch::jit::Graph>& graph, const SeenTensors& seen);

}  // namespace torchalgo

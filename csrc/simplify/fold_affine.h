// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Handles products and sums of a tensor with constants: a batch norm in eval mode, a learned scale
/// or gamma, a number, the normalization of an input. Each of them is y = x * scale[c] + shift[c].
/// - If x is the result of a convolution and nothing else reads it, the convolution's weights and
///   bias compute y.
/// - If only convolutions read y, their weights take the scale. Their biases take the shift, unless
///   they pad: the padding stays 0.
/// - A difference in which large terms cancel stays as it is, such as the first op of
///   (x - 101325) / 10. A chain of ops begins anew behind it.
/// - All that is left becomes one aten::batch_norm per chain of such ops, which import_graph reads
///   as a ScaleShiftProblem. Numbers alone do so only where weights fix the channels.
///
/// Constants are combined in double precision.
/// @return whether the graph has changed.
bool fold_affine(std::shared_ptr<torch::jit::Graph>& graph, const SeenTensors& seen);

}  // namespace torchalgo

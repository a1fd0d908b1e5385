// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

namespace torchalgo {

/// Multiplies the weights and the bias of a convolution by constants, one per output channel, if
/// the model multiplies its result by them. ConvNeXt's layer scale is such a product.
/// torch.jit.freeze does the same for constants of rank 4.
///
/// @return whether the graph has changed.
bool fold_scales(std::shared_ptr<torch::jit::Graph>& graph);

}  // namespace torchalgo

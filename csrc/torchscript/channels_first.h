// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

namespace torchalgo {

/// Removes permutes around linear layers. Networks such as ConvNeXt move the channels of an image
/// to the end, apply a layer norm, linear layers and activations, and move them back. Linear layers
/// become 1x1 convolutions of the image. The permutes around a layer norm stay: see
/// read_layer_norm.
///
/// @return whether the graph has changed.
bool move_channels_first(std::shared_ptr<torch::jit::Graph>& graph);

}  // namespace torchalgo

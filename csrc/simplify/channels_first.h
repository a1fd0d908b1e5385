// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Moves the channels of images and tokens to dimension 1 where a network has them last.
///
/// Networks such as ConvNeXt and MambaOut permute [n, c, h, w] to [n, h, w, c], apply layer norms,
/// linear layers, activations, splits and sums, and permute back. Such a part of the network is
/// computed without the permutes if it has a linear layer, which becomes a 1x1 convolution, or ends
/// with a permute back. The permutes around a layer norm stay: see read_layer_norm.
///
/// Transformers do the same with tokens [n, t, c]. These are computed as images [n, c, 1, t], which
/// have the same memory in nhwc. Where other ops read or make tokens, views lead from one form to
/// the other. Tokens that the model makes of an image by flatten(2).transpose(1, 2), and images
/// that it makes of tokens by transpose(1, 2).reshape(...), need no copy either if the image is in
/// nhwc.
///
/// @return whether the graph has changed.
bool move_channels_first(std::shared_ptr<torch::jit::Graph>& graph, const SeenTensors& seen);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

namespace torchalgo {

/// Makes zeros around an image a part of the padding of its readers, if these are 2-D convolutions
/// and there are as many zeros before the image as after it.
///
/// @return  true if the graph changed.
bool fold_pads(std::shared_ptr<torch::jit::Graph>& graph);

/// Gives each reader of an image with zeros around it a copy of the node that makes the zeros, if
/// all readers are 2-D convolutions. The importer joins a convolution with zeros that nothing else
/// reads.
///
/// @return  true if the graph changed.
bool copy_pads(std::shared_ptr<torch::jit::Graph>& graph);

}  // namespace torchalgo

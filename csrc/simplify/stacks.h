// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Takes stacks of images apart, so that import_graph sees operations on the images themselves:
/// - A sum, a select or an unbind along the dimension of a stack reads the images. A stack is made
///   by aten::stack, or by a view of [n, c, h, w] as [n, parts, c / parts, h, w].
/// - A product of two stacks is one product per image.
/// - A softmax over two images whose logits come from 1x1 convolutions is the sigmoid of one
///   convolution, whose weights are the differences.
/// - Vectors [n, c], as in the attention of such networks, stay images [n, c, 1, 1] throughout.
///   Linear layers on them become 1x1 convolutions if the result becomes an image again.
///
/// @param seen  the tensors that a run of `graph` makes.
/// @return  true if the graph changed. `seen` does not describe it any more in this case.
[[nodiscard]] bool take_stacks_apart(std::shared_ptr<torch::jit::Graph>& graph,
                                     const SeenTensors& seen);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Makes one op, torchalgo::attention, of matmul, scale, sum, softmax and matmul, as attention is
/// written down, and of scaled_dot_product_attention with a constant mask or none, in f32 on the
/// CPU. Tensors have rank 3 or 4. The softmax is over the keys, and nothing else reads what lies
/// between. The ops of attention without softmax, as EfficientViT has it, become
/// torchalgo::linear_attention.
///
/// @return whether the graph has changed.
bool fuse_attention(std::shared_ptr<torch::jit::Graph>& graph, const SeenTensors& seen);

}  // namespace torchalgo

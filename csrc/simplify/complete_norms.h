// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Gives group norms and instance norms of images the form that import_graph reads:
/// - An instance norm that uses the statistics of its input becomes an aten::group_norm with one
///   group per channel.
/// - An instance norm that uses running statistics becomes an aten::batch_norm in eval mode.
/// - A group norm without a weight or a bias gets ones or zeros, where weights fix the number of
///   channels.
///
/// Adds the new tensors to `seen`.
void complete_norms(std::shared_ptr<torch::jit::Graph>& graph, SeenTensors& seen);

}  // namespace torchalgo

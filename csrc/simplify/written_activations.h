// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Replaces activations that a model writes down itself by the op of that name, which import_graph
/// can read: x * sigmoid(x) is silu, x * tanh(softplus(x)) is mish, relu6(x + 3) / 6 is
/// hardsigmoid, x * hardsigmoid(x) is hardswish, and 0.5 * x * (1 + erf(x / sqrt(2))) is gelu. The
/// steps between must have no other reader.
///
/// @param seen  the tensors that a run of `graph` makes. Integers stay as they are.
/// @return  true if the graph changed. `seen` does not describe it any more in this case.
bool name_written_activations(std::shared_ptr<torch::jit::Graph>& graph, const SeenTensors& seen);

}  // namespace torchalgo

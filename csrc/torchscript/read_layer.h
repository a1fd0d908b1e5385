// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include "torchscript/op_reading.h"

namespace torchalgo {

// How the ops with weights are read. Each returns an empty reading for a form that is never
// planned.
// @throws NotPlanned  for a form that a user would expect to be planned, with the reason.
[[nodiscard]] OpReading read_conv(const Operands& op);  // transposed ones as well
[[nodiscard]] OpReading read_linear(const Operands& op);
[[nodiscard]] OpReading read_addmm(const Operands& op);
[[nodiscard]] OpReading read_batch_norm(const Operands& op);
/// Reads aten::permute as the last of the nodes of a layer norm over channels.
[[nodiscard]] OpReading read_layer_norm(const Operands& op);

/// The constants of a node that read_op gave a problem, in the form that every row expects: weights
/// [k, c / groups, (t,) r, s], of a linear [k, c], scale and shift of a scale-shift or a layer
/// norm; undefined where there are none. They share the storage of the model's where these are
/// contiguous.
struct OpWeights {
  at::Tensor weights;
  at::Tensor bias;
};
[[nodiscard]] OpWeights weights_of(const torch::jit::Node* node, const Problem& problem);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "import/op_reading.h"
#include "torchscript/graph_view.h"

namespace torchalgo {

// Readers of the ops with weights. Each returns an empty reading for a form that is never planned.
// @throws NotPlanned  for a form that a user would expect to be planned, with the reason.
[[nodiscard]] OpReading read_conv(const Operands& op);  // transposed ones as well
[[nodiscard]] OpReading read_linear(const Operands& op);
[[nodiscard]] OpReading read_addmm(const Operands& op);
[[nodiscard]] OpReading read_batch_norm(const Operands& op);
/// Reads aten::permute as the last of the nodes of a layer norm over channels.
[[nodiscard]] OpReading read_layer_norm(const Operands& op);

/// Reads torchalgo::channel_norm, which name_written_norms() makes.
[[nodiscard]] OpReading read_channel_norm(const Operands& op);

/// Reads aten::group_norm with a weight and a bias, which complete_norms() adds.
[[nodiscard]] OpReading read_group_norm(const Operands& op);

/// The constants of a node for which read_op returned a problem, in the form that every algorithm
/// expects. The weights are [k, c / groups, (t,) r, s], or [k, c] for a linear layer. A
/// scale-shift, a layer norm or a group norm has its scale and shift. A tensor is undefined if the
/// node has no such constant. It shares the storage of the model's constant if this is contiguous.
struct OpWeights {
  at::Tensor weights;
  at::Tensor bias;
};
[[nodiscard]] OpWeights weights_of(script::Node node, const Problem& problem);

}  // namespace torchalgo

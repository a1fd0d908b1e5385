// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "import/op_reading.h"
#include "torchscript/graph_view.h"
#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Reads one node of a frozen graph. Its weights must be constants; `infos` has the shapes of its
/// tensors. Returns an empty reading for a kind of op that is never planned.
[[nodiscard]] OpReading read_op(script::Node node, const TensorInfos& infos);

}  // namespace torchalgo

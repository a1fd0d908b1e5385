// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "torchscript/graph_view.h"

namespace torchalgo {

/// Returns the height and width of an op's result if the graph computes them in each run. They are
/// the argument `output_size` of a resizing or an adaptive pooling: a list of two integers, or one
/// integer for both. Returns null if the size is a constant, or follows from a factor.
[[nodiscard]] torch::jit::Value* computed_size(script::Node node);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Removes ops that return their input, if nobody writes to it:
/// - contiguous() between ops whose results do not depend on strides;
/// - the sum with the number 0, as in Python's sum([a, b]);
/// - casts of floating-point tensors to the type that they have.
///
/// @param seen  the tensors that a run of `graph` makes. It describes the new graph, too.
/// @return  true if the graph changed.
bool remove_identities(std::shared_ptr<torch::jit::Graph>& graph, const SeenTensors& seen);

}  // namespace torchalgo

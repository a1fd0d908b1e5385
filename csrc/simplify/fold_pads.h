// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

namespace torchalgo {

/// Makes a padding with zeros that only convolutions read a part of them. A symmetric one joins
/// their padding. If one side is padded by one row or column more than the other, a filter with two
/// rows or columns gets a third one of zeros: a 2x2 filter runs as a 3x3 one.
///
/// @return  true if the graph changed.
bool fold_pads(std::shared_ptr<torch::jit::Graph>& graph);

}  // namespace torchalgo

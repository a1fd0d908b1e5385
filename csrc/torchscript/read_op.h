// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include "torchscript/op_reading.h"
#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Reads one node of a frozen graph; weights must be constants, shapes those of `infos`. A kind
/// that is never planned gives an empty reading.
[[nodiscard]] OpReading read_op(const torch::jit::Node* node, const TensorInfos& infos);

/// Whether it is a convolution, transposed or not, under any of its names.
[[nodiscard]] bool is_convolution(const torch::jit::Node* node);

}  // namespace torchalgo

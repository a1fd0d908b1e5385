// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/custom_class.h>

#include <utility>

#include "all_algorithms.h"
#include "ops/planned_op.h"

namespace torchalgo {

/// A planned op as TorchScript holds it, in a graph's attributes and in files. Two classes, so that
/// graphs tell a convolution from the rest.
struct PackedConv : torch::CustomClassHolder {
  explicit PackedConv(OpState state) : op(std::move(state), all_algorithms()) {}
  PlannedOp op;
};
struct PackedOp : torch::CustomClassHolder {
  explicit PackedOp(OpState state) : op(std::move(state), all_algorithms()) {}
  PlannedOp op;
};

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/custom_class.h>

#include <utility>

#include "all_algorithms.h"
#include "ops/planned_op.h"

namespace torchalgo {

/// The classes that hold a planned op in TorchScript, in a graph's attributes and in files. There
/// are two, so that a graph shows which ops are convolutions. Their names are on disk.
struct PackedConv : torch::CustomClassHolder {
  explicit PackedConv(OpState state) : op(std::move(state), all_algorithms()) {}
  PlannedOp op;
};
struct PackedOp : torch::CustomClassHolder {
  explicit PackedOp(OpState state) : op(std::move(state), all_algorithms()) {}
  PlannedOp op;
};

/// Returns the planned op that `value` holds, or null if it is not an object of these classes.
[[nodiscard]] const PlannedOp* find_planned_op(const c10::IValue& value);

}  // namespace torchalgo

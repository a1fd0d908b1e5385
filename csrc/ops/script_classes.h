// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/custom_class.h>

#include <string>
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

/// Adds what torch needs to trace an op that takes an object of this class. A class whose
/// tracing_mode is "real" needs no copy without data: Meta kernels get the object itself. torch
/// compares objects to find results that it has cached.
template <typename Held>
void add_tracing_methods(torch::class_<Held>& added) {
  using Pointer = c10::intrusive_ptr<Held>;
  added.def("tracing_mode", [](const Pointer&) { return std::string("real"); });
  added.def("__eq__", [](const Pointer& one, const Pointer& other) { return one == other; });
}

/// Returns the planned op that `value` holds, or null if it is not an object of these classes.
[[nodiscard]] const PlannedOp* find_planned_op(const c10::IValue& value);

}  // namespace torchalgo

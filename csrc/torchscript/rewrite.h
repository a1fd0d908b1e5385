// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/api/module.h>

#include "ir/plan.h"
#include "torchscript/import.h"

namespace torchalgo {

/// A new module whose forward runs the primitives of `plan`; `imported` is not changed and weights
/// are shared.
/// @throws Error  if the plan was made for another model: the names or problems differ.
[[nodiscard]] torch::jit::Module rewrite_graph(const ImportedGraph& imported, const Plan& plan);

}  // namespace torchalgo

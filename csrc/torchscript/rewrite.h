// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/api/module.h>

#include "ir/plan.h"
#include "torchscript/import.h"

namespace torchalgo {

/// Returns a new module whose forward runs the primitives of `plan`. `imported` is not changed. The
/// new module shares its weights.
/// @throws Error  if the plan was made for another model, which has other names or problems.
[[nodiscard]] torch::jit::Module rewrite_graph(const ImportedGraph& imported, const Plan& plan);

}  // namespace torchalgo

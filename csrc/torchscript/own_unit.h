// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/api/module.h>

namespace torchalgo {

/// Returns a module that shares the tensors and the code of `module`. Copies that clone() or
/// torch.jit.freeze make of it are freed with their last user.
///
/// PyTorch puts the code of a copy into the compilation unit of the copied module. A traced or
/// scripted module uses one that lives as long as the process. Frozen code has the weights as
/// constants, so they would never be freed.
[[nodiscard]] torch::jit::Module with_own_unit(const torch::jit::Module& module);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torchalgo {

/// The autograd kernel of every op that runs a plan. It redispatches to the kernel of the backend.
/// @throws Error  if an input needs a derivative.
void run_without_derivative(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                            torch::jit::Stack* stack);

/// The kernel of every op that runs a plan on all other backends. A call without any tensor gets
/// the error of the CPU's kernel.
/// @throws Error  that says which tensor is not supported.
void refuse_backend(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace torchalgo

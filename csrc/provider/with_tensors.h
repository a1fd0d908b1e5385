// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/plain_kernel.h"
#include "provider/algorithm.h"
#include "provider/kernel.h"

namespace torchalgo {

/// Returns torch's threads.
[[nodiscard]] cpu::Threads torch_threads();

/// Makes a kernel on torch's tensors and threads from one on plain memory. All tensors are f32.
/// Packing throws Error TA4302 if the model's weights have other sizes than the problem.
[[nodiscard]] Kernel with_tensors(cpu::PlainKernel plain, const Problem& problem,
                                  Primitive primitive);

/// Sets `prepare` of the algorithms that have `bind`.
void prepare_with_tensors(Algorithms& algorithms);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

#include "provider/kernel.h"
#include "standalone/kernel.h"

namespace torchalgo::cpu {

/// Returns torch's threads.
[[nodiscard]] Threads torch_threads();

/// Makes a kernel on torch's tensors and threads from one on plain memory. If `least_work` is null,
/// the kernel's least work has no arithmetic.
[[nodiscard]] Kernel with_tensors(StandaloneKernel kernel, const Problem& problem,
                                  Primitive primitive, std::function<Work()> least_work = nullptr);

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <utility>

#include "ir/algorithm.h"
#include "provider/kernel.h"

namespace torchalgo {

/// Returns an Algorithm::prepare whose kernels call these functions for any problem.
inline decltype(Algorithm::prepare) prepare_fake(
    std::function<at::Tensor(const KernelArgs&)> run,
    std::function<Packed(const Weights&)> pack = nullptr) {
  return [run = std::move(run), pack = std::move(pack)](
             const Problem& problem, const Primitive& primitive, const Device&) -> Kernel {
    return {.problem = problem, .primitive = primitive, .run = run, .pack = pack};
  };
}

}  // namespace torchalgo

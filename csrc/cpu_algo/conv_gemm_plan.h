// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "provider/work.h"
#include "standalone/conv_gemm.h"

namespace torchalgo::cpu {

/// Returns direct_work() with seven of eight products in the convolutions that can_strassen().
[[nodiscard]] Work strassen_work(const Problem& problem);

/// Packs `weights` into a new tensor.
[[nodiscard]] at::Tensor pack_conv_gemm(const kernels::ConvGemm& gemm, const ConvProblem& conv,
                                        const at::Tensor& weights);

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "provider/kernel.h"

namespace torchalgo {

/// An uninitialized tensor for what a row writes: a result, a workspace. On a CPU its memory is
/// reused from call to call (provider/page_pool.h); elsewhere, and where it is small, it is
/// torch's.
[[nodiscard]] at::Tensor empty_reused(at::IntArrayRef sizes, at::IntArrayRef strides,
                                      at::ScalarType dtype, at::Device device);
/// Of `problem` in `layout`.
[[nodiscard]] at::Tensor empty_result(const Problem& problem, Layout layout,
                                      at::Device device = at::kCPU);
/// Of logical `sizes` ([n, c, (d,) h, w]) in `layout`.
[[nodiscard]] at::Tensor empty_tensor(const std::vector<std::int64_t>& sizes, DType dtype,
                                      Layout layout, at::Device device = at::kCPU);
/// As `tensor`, whose elements lie densely, with the same elements.
[[nodiscard]] at::Tensor copy_reused(const at::Tensor& tensor);
[[nodiscard]] at::Tensor empty_bytes(std::int64_t bytes, at::Device device);

/// Packs the weights for `kernel`. New tensors on a CPU are moved to pages that hold nothing but
/// packed weights.
[[nodiscard]] Packed pack_to_stay(const Kernel& kernel, const Weights& weights);

/// Hands back to the system what no tensor uses now.
void release_idle_memory();

}  // namespace torchalgo

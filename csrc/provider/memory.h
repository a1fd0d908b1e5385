// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo {

/// Allocates an uninitialized tensor for a result or a workspace. On a CPU its memory is reused
/// from call to call (provider/page_pool.h); elsewhere, and if it is small, the memory is torch's.
[[nodiscard]] at::Tensor empty_reused(at::IntArrayRef sizes, at::IntArrayRef strides,
                                      at::ScalarType dtype, at::Device device);
/// Allocates an uninitialized result tensor for `problem` in `layout`.
[[nodiscard]] at::Tensor empty_result(const Problem& problem, Layout layout,
                                      at::Device device = at::kCPU);
/// Allocates an uninitialized tensor of logical `sizes` ([n, c, (d,) h, w]) in `layout`, for a
/// problem of type `dtype`.
[[nodiscard]] at::Tensor empty_tensor(const std::vector<std::int64_t>& sizes, DType dtype,
                                      Layout layout, at::Device device = at::kCPU);
/// Allocates a workspace.
[[nodiscard]] at::Tensor empty_bytes(std::int64_t bytes, at::Device device);

/// Returns true if all elements of a dense tensor lie in its memory. A damaged file may hold a
/// tensor with other sizes, strides or another offset, which torch does not check when it reads the
/// file.
[[nodiscard]] bool lies_in_its_memory(const at::Tensor& tensor);

/// Returns a tensor on the meta device, without data, of the same sizes, strides and type. Symbolic
/// sizes become numbers: torch then guards them, and compiles again for other sizes. An undefined
/// tensor stays undefined.
[[nodiscard]] at::Tensor on_meta(const at::Tensor& tensor);

/// Copies a dense tensor to memory of empty_reused().
[[nodiscard]] at::Tensor copy_reused(const at::Tensor& tensor);
/// Copies a dense CPU tensor to pages that hold nothing but packed weights.
[[nodiscard]] at::Tensor copy_to_weight_pages(const at::Tensor& tensor);

/// While it exists, `bytes` of memory that no tensor uses are kept for the next tensors. Without
/// it, a training step would give the memory of its saved tensors back, and page it in again.
class KeptMemory {
 public:
  explicit KeptMemory(std::int64_t bytes);
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;
  ~KeptMemory();

 private:
  std::int64_t bytes_;
};

/// Gives memory that no tensor uses back to the system.
void release_idle_memory();

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "ir/algorithm.h"
#include "ir/candidates.h"
#include "provider/kernel.h"

namespace torchalgo {

/// Packs the weights for `kernel`, to be kept as long as the model. On a CPU, new tensors are moved
/// to pages that hold only packed weights. On a GPU, it waits until the weights are packed.
/// @throws Error  if the current stream of the weights' GPU captures a CUDA graph. Nothing is
/// packed.
[[nodiscard]] Packed pack_to_weight_pages(const Kernel& kernel, const Weights& weights);

/// Returns the bytes that packing allocates for each candidate, in the order of
/// Candidates::by_anchor. No kernel is run.
[[nodiscard]] std::vector<std::vector<std::int64_t>> packed_bytes(const Candidates& candidates,
                                                                  const Algorithms& algorithms,
                                                                  const Device& device);

/// Returns the bytes of a copy of the weights in `layout`, or 0 if they need no copy. With a single
/// channel or a single tap, krsc and kcrs are the same memory.
[[nodiscard]] std::int64_t strided_copy_bytes(const Problem& problem, Layout layout);

}  // namespace torchalgo

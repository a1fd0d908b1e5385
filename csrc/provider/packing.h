// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "ir/candidates.h"
#include "provider/algorithm.h"

namespace torchalgo {

/// Packs the weights for `kernel` as long as a model lives: new tensors on a CPU are moved to pages
/// that hold nothing but packed weights.
[[nodiscard]] Packed pack_to_weight_pages(const Kernel& kernel, const Weights& weights);

/// Returns the bytes that packing allocates for every candidate, as Candidates::by_anchor; known
/// before anything runs.
[[nodiscard]] std::vector<std::vector<std::int64_t>> packed_bytes(const Candidates& candidates,
                                                                  const Algorithms& algorithms,
                                                                  const Device& device);

/// Returns the bytes of a copy of the weights in `layout`: 0 if they lie so already, since the
/// memory of krsc is that of kcrs if there is a single channel or a single tap.
[[nodiscard]] std::int64_t strided_copy_bytes(const Problem& problem, Layout layout);

}  // namespace torchalgo

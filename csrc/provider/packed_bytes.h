// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "ir/candidates.h"
#include "provider/algorithm.h"

namespace torchalgo {

/// Returns the bytes that packing allocates for every candidate, as Candidates::by_anchor; known
/// before anything runs.
[[nodiscard]] std::vector<std::vector<std::int64_t>> packed_bytes(const Candidates& candidates,
                                                                  const Algorithms& algorithms,
                                                                  const Device& device);

/// Bytes of a copy of the weights in `layout`: 0 where they lie so already, because the memory of
/// krsc is that of kcrs if either is a single channel or a single tap.
[[nodiscard]] std::int64_t strided_copy_bytes(const Problem& problem, Layout layout);

}  // namespace torchalgo

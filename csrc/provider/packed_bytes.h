// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "ir/candidates.h"
#include "provider/algorithm.h"

namespace torchalgo {

/// Bytes that a row's `pack` allocates for one primitive of `problem`: what lies in memory beside
/// the model's own weights once it is loaded. Known before anything runs; 0: it uses those.
[[nodiscard]] std::int64_t packed_bytes(const Algorithm& algorithm, const Problem& problem,
                                        const Primitive& primitive);

/// The same for every candidate, as Candidates::by_anchor.
[[nodiscard]] std::vector<std::vector<std::int64_t>> packed_bytes(const Candidates& candidates,
                                                                  const Algorithms& algorithms);

/// Bytes of `packed` that are no memory of `plain`; oneDNN's own tensors among them.
[[nodiscard]] std::int64_t held_bytes(const Packed& packed, const Weights& plain);

/// Bytes of the weights of `problem` as the model has them, without the bias.
[[nodiscard]] std::int64_t plain_weight_bytes(const Problem& problem);

/// Bytes of a copy of the weights in `layout`: 0 where they lie so already, because the memory of
/// krsc is that of kcrs if either is a single channel or a single tap.
[[nodiscard]] std::int64_t strided_copy_bytes(const Problem& problem, Layout layout);

}  // namespace torchalgo

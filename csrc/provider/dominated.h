// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "provider/find_candidates.h"

namespace torchalgo {

/// Returns `offers` without the primitives that need not be measured, because another one is surely
/// not slower or the difference is small. These are:
/// - primitives that copy more inside than the same algorithm and knobs with the weights in another
///   layout;
/// - primitives with knobs other than the algorithm's defaults that change a layout inside: the
///   native layouts have the same knobs, and the copies dominate the time.
///
/// Each becomes a refusal with its reason.
[[nodiscard]] ProblemOffers without_dominated(ProblemOffers offers, const std::string& problem);

/// Returns `offers` without the primitives that are compiled when they first run, which takes
/// seconds for each. Each becomes a refusal.
[[nodiscard]] ProblemOffers without_runtime_compiled(ProblemOffers offers,
                                                     const std::string& problem);

}  // namespace torchalgo

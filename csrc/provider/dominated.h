// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "provider/find_candidates.h"

namespace torchalgo {

/// `offers` without the primitives that need not be measured, because another one surely is no
/// slower or what they differ in does not matter much:
/// - the same algorithm and knobs with the weights in another layout, where it copies more inside;
/// - other knobs than an algorithm's default ones, where it changes a layout inside: the native
///   layouts have the same knobs, and the copies decide;
/// - what is compiled when it first runs, which takes seconds each, if anything else is left.
/// Each becomes a refusal that says so.
[[nodiscard]] ProblemOffers without_dominated(ProblemOffers offers, const std::string& problem);

}  // namespace torchalgo

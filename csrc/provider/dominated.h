// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "provider/find_candidates.h"

namespace torchalgo {

/// Returns `offers` without the primitives that need not be measured, because another one is surely
/// not slower or the difference is small. These are:
/// - primitives that copy more inside than the same algorithm and knobs with the weights in another
///   layout;
/// - primitives with Traits::repeats, if enumerated ones are offered: these start the same kernels.
///   Winograd and FFT are kept if no enumerated primitive computes so;
/// - enumerated primitives (Traits::is_enumerated, as cuDNN's engines are) that change a layout
///   inside, if one does not: a plan changes it outside, once for all readers. If it is unknown
///   whether a primitive does so, it is left out too, unless the library's heuristics propose it
///   among their first four, or options.all_knobs is set;
/// - enumerated primitives without tensor cores, if one with tensor cores changes no layout inside;
/// - knobs of enumerated primitives that the library's heuristics do not propose among their first
///   four, unless `options.all_knobs`.
///
/// On an H100, these leave 1,297 of 11,200 candidates of a ResNet-50 in f16 with batch 8. The best
/// plan is 3 % slower than that of all candidates (`bench_replay.py gpu`).
///
/// Each becomes a refusal with its reason. Those that options.named names are kept.
[[nodiscard]] ProblemOffers without_dominated(ProblemOffers offers, const std::string& problem,
                                              const CandidateOptions& options = {});

/// Returns `offers` without the primitives that are compiled when they first run, which takes
/// seconds for each. Each becomes a refusal.
[[nodiscard]] ProblemOffers without_runtime_compiled(ProblemOffers offers,
                                                     const std::string& problem);

}  // namespace torchalgo

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "ops/fallback.h"
#include "ops/settings.h"

namespace torchalgo {

/// The request of one convolution: a name without layouts, and the layouts of its tensors.
struct ConvRequest {
  std::string name;  // of a primitive, or of an algorithm, which allows all its variants
  Layout src = Layout::kNchw;
  Layout weights = Layout::kNchw;
  Layout dst = Layout::kNchw;  // of the result, as the caller wants it
  bool needs_determinism = false;
  ConflictPolicy conflict = ConflictPolicy::kError;
  bool operator==(const ConvRequest&) const = default;
};

/// Returns the kernel for the name in a choice. The first of these that can run is taken:
/// 1. the named primitive in the tensors' layouts (kPlanned), or with layout changes around it
///    (kOtherLayouts). A choice names no layouts, so neither is a fallback. If the weights are
///    krsc, a name without the variant ".krsc" stands for that variant too;
/// 2. the same name without knobs (kDefaultKnobs);
/// 3. what propose() returns for these layouts or others; if it returns nothing, another variant of
///    an algorithm without heuristics (kHeuristic);
/// 4. ATen (kAten).
///
/// In each step, a primitive that does not fuse the epilogue runs without it. ATen then applies
/// `rest`. `conflict` says what happens if a primitive breaks a flag of torch: if it is not
/// deterministic although this is needed, or if it computes an f32 problem in TF32.
/// @throws Error  on a conflict, if the policy is kError; if no algorithm of `algorithms` runs the
/// problem.
[[nodiscard]] Resolution resolve_choice(const ConvRequest& request, const ConvProblem& problem,
                                        const Algorithms& algorithms, const Device& device);

}  // namespace torchalgo

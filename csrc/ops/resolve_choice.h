// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "ops/resolve.h"
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

/// The one way from a name to a kernel, first of
/// 1. the primitive, in the tensors' layouts (kPlanned) or with layout changes around it
///    (kOtherLayouts): a choice names no layouts, so both are what was asked for; a name without
///    variant ".krsc" stands for that variant too where the weights lie so;
/// 2. the same name without knobs (kDefaultKnobs);
/// 3. what cuDNN's heuristics put first, or another variant of the algorithm (kHeuristic);
/// 4. ATen (kAten).
/// In each step a primitive that does not fuse the epilogue runs without it, and `rest` follows.
/// A primitive that breaks a flag of torch is treated as `conflict` says: one that is not
/// deterministic where that is needed, and one that computes an f32 problem in TF32.
/// @throws Error  on a conflict, if so asked; if nothing in `algorithms` runs the problem.
[[nodiscard]] Resolution resolve_choice(const ConvRequest& request, const ConvProblem& problem,
                                        const Algorithms& algorithms, const Device& device);

}  // namespace torchalgo

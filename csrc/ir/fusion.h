// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "ir/problem.h"

namespace torchalgo {

/// Two operations that one call may compute.
struct Fusion {
  Problem problem;             // of the call
  bool adds_residual = false;  // the call reads the other input of the second one, an addition
};

/// Returns the call that computes `before` and then `next`, which reads its result and which nobody
/// else reads; nullopt if no call may compute both. This is the only rule of fusion: the search for
/// candidates extends calls by it, and a plan that fuses is checked against it.
///
/// - A convolution, a linear layer, a scale-shift, an addition and a product take the activation
///   that follows them; a convolution takes the addition before that too.
/// - A concatenation takes the channel shuffle that follows it.
/// - A depthwise convolution and its neighbours become a chain, as do a scale-shift, a product per
///   channel or a global pooling and the 1x1 convolutions behind it.
[[nodiscard]] std::optional<Fusion> fuse(const Problem& before, const Problem& next);

}  // namespace torchalgo

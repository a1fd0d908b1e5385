// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "ir/problem.h"

namespace torchalgo {

/// One call that computes two operations.
struct Fusion {
  Problem problem;             // of the call
  bool adds_residual = false;  // the second is an addition, whose other input the call reads
};

/// Returns the call that computes `before` and then `next`. `next` must be the only reader of the
/// result of `before`. Returns nullopt if no call may compute both. This is the only rule of
/// fusion: the search for candidates extends calls by it, and fused nodes of a plan are checked
/// against it.
///
/// - A convolution, a linear layer, a scale-shift, a group norm, an addition and a product absorb
///   the activation that follows them. A convolution also absorbs an addition before that
///   activation.
/// - A concatenation absorbs the channel shuffle that follows it.
/// - A depthwise convolution and its neighbours become a chain. A scale-shift, a product per
///   channel or a global pooling becomes a chain with the 1x1 convolutions behind it.
[[nodiscard]] std::optional<Fusion> fuse(const Problem& before, const Problem& next);

}  // namespace torchalgo

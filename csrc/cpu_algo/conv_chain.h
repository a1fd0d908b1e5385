// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Functions that the algorithms for chains around a depthwise convolution share.

#include <string>

#include "ir/problem.h"

namespace torchalgo::cpu {

/// The convolutions of a chain by their role. `wide` or `narrow` may be missing.
struct ChainParts {
  const ConvProblem* wide = nullptr;  // computes the depthwise one's input; null: none
  const ConvProblem* depthwise = nullptr;
  const ConvProblem* narrow = nullptr;  // 1x1, reads the depthwise result; null: none
};

/// Returns the convolutions of a chain by role. refuse_chain() must accept it.
[[nodiscard]] ChainParts parts_of(const Problem& problem);

/// Returns the reason why a problem is not a chain of these parts, or an empty string.
[[nodiscard]] std::string refuse_chain(const Problem& problem);

}  // namespace torchalgo::cpu

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/algorithm.h"

namespace torchalgo {

/// Sets `prepare` of the algorithms that have `bind`: the plain kernel runs on f32 tensors and
/// torch's threads. Packing throws Error TA4302 if the model's weights have other sizes than the
/// problem.
void prepare_with_tensors(Algorithms& algorithms);

}  // namespace torchalgo
